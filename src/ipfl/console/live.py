"""Server-sent events: a round that was committed is told to the browser within a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from ipfl.console.figures import run_row
from ipfl.console.run_list import FoundRun, RunList
from ipfl.console.starting import Starter

POLL_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""A comment is sent so often: a connection that broke is noticed."""


@dataclass
class Streams:
    """The live connections."""

    limit: int
    poll_seconds: float = POLL_SECONDS
    _open: set[int] = field(default_factory=set)
    _count: int = 0

    def is_full(self) -> bool:
        """Whether there are as many as there may be."""
        return len(self._open) >= self.limit

    def response(self, look: Callable[[], tuple[str, str, bool]]) -> StreamingResponse:
        """A stream of what `look` returns, whenever it changes: (event, data, whether it is the last)."""
        return StreamingResponse(self._events(look), media_type="text/event-stream")

    async def _events(self, look: Callable[[], tuple[str, str, bool]]) -> AsyncIterator[str]:
        self._count += 1
        number = self._count
        self._open.add(number)
        try:
            before, quiet = "", 0.0
            while True:
                event, data, is_last = await run_in_threadpool(look)
                if data != before:
                    before, quiet = data, 0.0
                    yield f"event: {event}\ndata: {data}\n\n"
                elif quiet >= ALIVE_SECONDS:
                    quiet = 0.0
                    yield ": alive\n\n"
                if is_last:
                    yield "event: end\ndata: {}\n\n"
                    return
                await asyncio.sleep(self.poll_seconds)
                quiet += self.poll_seconds
        finally:
            self._open.discard(number)


def watch_run(runs: RunList, found: FoundRun) -> Callable[[], tuple[str, str, bool]]:
    """Looks at one run; ends when it is finished."""

    def look() -> tuple[str, str, bool]:
        row = run_row(runs, found)
        news = {"done": row.done, "rounds": row.rounds, "state": row.state}
        return "round", json.dumps(news), row.state == "finished"

    return look


def watch_list(runs: RunList, starter: Starter) -> Callable[[], tuple[str, str, bool]]:
    """Looks at all runs, and at the commands that were started: tells that something changed."""

    def look() -> tuple[str, str, bool]:
        found = runs.find()
        if runs.folder is None:  # a database has no file to look at
            stamps: tuple[object, ...] = tuple((key, run_row(runs, run).done) for key, run in found.items())
        else:
            stamps = tuple((key, run.stamp()) for key, run in found.items())
        return "runs", json.dumps({"version": hash((stamps, *starter.alive()))}), False

    return look
