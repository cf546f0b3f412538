"""One console: its runs, its rules, its live connections, and how routes get at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from ipfl.console.access import AccessRules, Identity
from ipfl.console.figures import run_row
from ipfl.console.found_runs import FoundRun, FoundRuns
from ipfl.console.guard import Bucket, RequestLimits
from ipfl.errors import InputError

MAX_NUMBER = 2**31 - 1
POLL_SECONDS = 0.5
ALIVE_SECONDS = 15.0
"""A comment is sent so often: a connection that broke is noticed."""
News = tuple[str, str, bool]
"""Event, its data, and whether it is the last."""


@dataclass
class Streams:
    """The live connections: server-sent events that tell a browser of news within a second."""

    limit: int
    open: int = 0

    def response(self, look: Callable[[], News]) -> StreamingResponse:
        """A stream of what `look` returns, whenever it changes; an answer 429 if there are too many."""
        if self.open >= self.limit:
            raise HTTPException(429, "too many live connections")
        return StreamingResponse(self._events(look), media_type="text/event-stream")

    async def _events(self, look: Callable[[], News]) -> AsyncIterator[str]:
        self.open += 1
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
                await asyncio.sleep(POLL_SECONDS)
                quiet += POLL_SECONDS
        finally:
            self.open -= 1


def watch_run(runs: FoundRuns, found: FoundRun) -> Callable[[], News]:
    """Looks at one run; ends when it is finished."""

    def look() -> News:
        row = run_row(runs, found)
        news = {"done": row.done, "rounds": row.rounds, "state": row.state}
        return "round", json.dumps(news), row.state == "finished"

    return look


def watch_list(runs: FoundRuns) -> Callable[[], News]:
    """Looks at all runs: tells that something changed."""

    def look() -> News:
        found = runs.find()
        if runs.folder is None:  # a database has no file to look at
            stamps: tuple[object, ...] = tuple((key, run_row(runs, run).done) for key, run in found.items())
        else:
            stamps = tuple((key, run.stamp()) for key, run in found.items())
        return "runs", json.dumps({"version": hash(stamps)}), False

    return look


@dataclass
class Console:
    """The runs of one console, its rules and its live connections."""

    runs: FoundRuns
    access: AccessRules
    limits: RequestLimits = field(default_factory=RequestLimits)
    streams: Streams = field(init=False)
    sign_ins: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.streams = Streams(self.limits.streams)
        per_minute = self.limits.sign_ins_per_minute
        self.sign_ins = Bucket(per_minute / 60, per_minute)

    def find(self, key: str) -> FoundRun:
        """A run by its key; an answer 404 if there is none."""
        found = self.runs.find().get(key)
        if found is None:
            raise HTTPException(404, "there is no such run; it may have been moved or deleted")
        return found

    def identity_of(self, key: str) -> str | None:
        """The hash that the run's ledger begins with; None: there is no such run, or it cannot be read."""
        found = self.runs.find().get(key)
        if found is None:
            return None
        try:
            return self.runs.open(found).begun
        except InputError:
            return None


def console_of(request: Request) -> Console:
    """The console that serves a request."""
    found: Console = request.app.state.console
    return found


ConsoleOf = Annotated[Console, Depends(console_of)]


def require_operator(request: Request, console: ConsoleOf) -> Identity:
    """Only the operator, or everybody without `--auth`."""
    return console.access.require_operator(request)


RunKey = Annotated[str, Path(max_length=500, description="key of a run, see `/api/runs`")]
ClientNumber = Annotated[int, Path(ge=0, le=MAX_NUMBER)]


def require_client(request: Request, console: ConsoleOf, run: RunKey, client: ClientNumber) -> Identity:
    """The operator, or the client that the address names."""
    return console.access.require_client(request, lambda: console.identity_of(run), client)


ForOperator = Annotated[Identity, Depends(require_operator)]
ForClient = Annotated[Identity, Depends(require_client)]


def find_run(console: ConsoleOf, run: RunKey) -> FoundRun:
    """The run that the address names."""
    return console.find(run)


Run = Annotated[FoundRun, Depends(find_run)]
