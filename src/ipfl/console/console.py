"""What one console consists of, and how routes get at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request

from ipfl.console.access import Access, Identity
from ipfl.console.guard import Bucket, RequestLimits
from ipfl.console.live import Streams
from ipfl.console.run_list import FoundRun, RunList
from ipfl.console.starting import Starter
from ipfl.console.verification import Verifier

MAX_NUMBER = 2**31 - 1


@dataclass
class Console:
    """One console: its runs, its rules, what it has under way."""

    runs: RunList
    access: Access
    limits: RequestLimits = field(default_factory=RequestLimits)
    poll_seconds: float = 0.5
    verifier: Verifier = field(init=False)
    starter: Starter = field(init=False)
    streams: Streams = field(init=False)
    sign_ins: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.verifier, self.starter = Verifier(self.runs), Starter(self.runs)
        self.streams = Streams(self.limits.streams, self.poll_seconds)
        per_minute = self.limits.sign_ins_per_minute
        self.sign_ins = Bucket(per_minute / 60, per_minute)

    def find(self, key: str) -> FoundRun:
        """A run by its key; an answer 404 if there is none."""
        found = self.runs.find().get(key)
        if found is None:
            raise HTTPException(404, "there is no such run; it may have been moved or deleted")
        return found


def console_of(request: Request) -> Console:
    """The console that serves a request."""
    found: Console = request.app.state.console
    return found


ConsoleOf = Annotated[Console, Depends(console_of)]


def require_operator(request: Request, console: ConsoleOf) -> Identity:
    """Only the operator, or everybody without `--auth`."""
    return console.access.require_operator(request)


def require_starter(request: Request, console: ConsoleOf) -> Identity:
    """Only the operator with a token, where runs may be started."""
    return console.access.require_starter(request)


RunKey = Annotated[str, Path(max_length=500, description="key of a run, see `/api/runs`")]
ClientNumber = Annotated[int, Path(ge=0, le=MAX_NUMBER)]


def require_client(request: Request, console: ConsoleOf, run: RunKey, client: ClientNumber) -> Identity:
    """The operator, or the client that the address names."""
    return console.access.require_client(request, run, client)


ForOperator = Annotated[Identity, Depends(require_operator)]
ForStarter = Annotated[Identity, Depends(require_starter)]
ForClient = Annotated[Identity, Depends(require_client)]


def find_run(console: ConsoleOf, run: RunKey) -> FoundRun:
    """The run that the address names."""
    return console.find(run)


Run = Annotated[FoundRun, Depends(find_run)]
