"""Ctrl-C, taken at moments at which a run can stop.

The default handler raises KeyboardInterrupt wherever the program happens to be: in the middle of a commit, or
inside a callback that swallows it. Here a request is remembered, and raised at once only where that is safe.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """Listens for SIGINT while it is entered; only the main thread can."""

    def __init__(self) -> None:
        self.requested = False
        self._held = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self._held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, a request has to wait."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was a request, even one that something swallowed."""
        if self.requested:
            raise KeyboardInterrupt
