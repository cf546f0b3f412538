"""Handlers for Ctrl-C (SIGINT) and SIGTERM.

Python's own handler for Ctrl-C raises KeyboardInterrupt at any line: in the middle of a database commit, or
in a callback of a library that catches it. `InterruptHandler` can delay it, and raises it again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit(143), so that context managers and `finally` blocks run.

    Outside the main thread it does nothing: Python allows signal handlers only there.
    """

    def exit_program(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, exit_program)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class InterruptHandler:
    """Handles Ctrl-C inside its `with` block: raises KeyboardInterrupt, except inside `delay`.

    Outside the main thread it does nothing: Python allows signal handlers only there.

    Attributes:
        is_requested: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._is_delayed = False
        self._previous: Any = None

    def __enter__(self) -> InterruptHandler:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        if not self._is_delayed:
            raise KeyboardInterrupt

    @contextmanager
    def delay(self) -> Iterator[None]:
        """Inside, Ctrl-C is only noted; the next call of `raise_if_requested` raises it."""
        self._is_delayed = True
        try:
            yield
        finally:
            self._is_delayed = False

    def raise_if_requested(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed, even if other code caught the first one."""
        if self.is_requested:
            raise KeyboardInterrupt
