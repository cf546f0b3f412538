"""Where the time of a run goes, by phase, and as a trace that Perfetto opens.

profile = Profile()
with profile.recording():
ipfl.run(…)
profile.phases()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipfl.system.timing import SERVER, Recording


@dataclass
class Phase:
    """All spans of one name."""

    name: str
    times: int = 0
    seconds: float = 0.0
    """Without those of other phases inside it."""
    down: int = 0
    up: int = 0


class Profile(Recording):
    """What was measured of a run, put together."""

    def phases(self) -> list[Phase]:
        """The server's phases in the order of their first spans; what is in none of them comes last."""
        found: dict[str, Phase] = {}
        for span in sorted((span for span in self.spans if span.track == SERVER), key=lambda one: one.begun):
            phase = found.setdefault(span.name, Phase(span.name))
            phase.times += 1
            phase.seconds += span.own
            phase.down += span.down
            phase.up += span.up
        rest = self.seconds - sum(phase.seconds for phase in found.values())
        return [*found.values(), Phase("other", 1, rest)]

    def trace(self) -> dict[str, Any]:
        """The spans as trace events of Chrome, times in microseconds; https://ui.perfetto.dev opens them."""
        tracks: Sequence[str] = [SERVER, *sorted({span.track for span in self.spans} - {SERVER})]
        numbers = {track: number for number, track in enumerate(tracks)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": track}}
            for track, number in numbers.items()
        ]
        events = [
            {
                "ph": "X",
                "name": span.name,
                "cat": "ipfl",
                "pid": 0,
                "tid": numbers[span.track],
                "ts": round((span.begun - self._begun) * 1e6, 1),
                "dur": round(span.seconds * 1e6, 1),
                "args": span.details | {"bytes_down": span.down, "bytes_up": span.up},
            }
            for span in sorted(self.spans, key=lambda one: one.begun)
        ]
        return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}
