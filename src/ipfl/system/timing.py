"""Where the time of a run goes: seconds and bytes of what stands in `with measure("name"):`.

Without a `Recording` (`ipfl.play.profile.Profile`), that costs nothing and leaves nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER = "server"
"""Track of the process that runs the rounds."""


@dataclass
class Span:
    """Something that was measured."""

    name: str
    track: str
    begun: float
    """By `time.perf_counter`, as is `seconds`."""
    seconds: float = 0.0
    inner: float = 0.0
    """Seconds of the spans inside it."""
    down: int = 0
    """Bytes that the server sent, or wrote to disk."""
    up: int = 0
    """Bytes that it received."""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> float:
        """Seconds that no span inside it accounts for."""
        return self.seconds - self.inner


class Recording:
    """What was measured of a run."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.seconds = 0.0
        """From the beginning to the end of the recording."""
        self._open: list[Span] = []
        self._begun = 0.0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Measures what is done inside."""
        before = _recording.set(self)
        self._begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds = time.perf_counter() - self._begun
            _recording.reset(before)

    @contextmanager
    def measure(self, span: Span) -> Iterator[Span]:
        """Measures what is done inside as one span."""
        self._open.append(span)
        try:
            yield span
        finally:
            span.seconds = time.perf_counter() - span.begun
            self._open.pop()
            if self._open:
                self._open[-1].inner += span.seconds
            self.spans.append(span)


_recording: ContextVar[Recording | None] = ContextVar("ipfl_profile", default=None)


@contextmanager
def measure(name: str, **details: Any) -> Iterator[Span]:
    """Measures what is done inside as a phase of the server; the span takes its bytes."""
    profile, span = _recording.get(), Span(name, SERVER, time.perf_counter(), details=details)
    if profile is None:
        yield span
        return
    with profile.measure(span):
        yield span


def add_span(name: str, track: str, begun: float, **details: Any) -> None:
    """Adds to the trace what has just ended elsewhere, such as a worker's part in a phase."""
    profile = _recording.get()
    if profile is not None:
        profile.spans.append(Span(name, track, begun, time.perf_counter() - begun, details=details))


def bytes_written() -> int:
    """Bytes that this process has written so far, to files, pipes and sockets; 0 where nobody counts them."""
    try:
        lines = Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    except (OSError, StopIteration):
        return 0
