"""One console: its runs, its tokens, and how routes get at it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, HTTPException, Path, Request

from ipfl.console.access import COOKIE, AccessTokens, Identity, SignInNeeded
from ipfl.console.found_runs import FoundRun, FoundRuns
from ipfl.console.guard import Bucket, RequestLimits
from ipfl.errors import InputError

MAX_NUMBER = 2**31 - 1


@dataclass
class Console:
    """The runs of one console, and who may see them."""

    runs: FoundRuns
    tokens: AccessTokens | None
    """None: no `--auth`, everybody may read."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    sign_ins: Bucket = field(init=False)

    def __post_init__(self) -> None:
        per_minute = self.limits.sign_ins_per_minute
        self.sign_ins = Bucket(per_minute / 60, per_minute)

    def identify(self, request: Request) -> Identity | None:
        """The one who asks; None: nobody that is known."""
        if self.tokens is None:
            return Identity(is_operator=True)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            token = request.cookies.get(COOKIE, "")
        return self.tokens.identify(token.strip()) if token else None

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


def require_identity(request: Request, console: ConsoleOf) -> Identity:
    """The one who asks; nobody who is not known."""
    identity = console.identify(request)
    if identity is None:
        raise SignInNeeded
    return identity


Known = Annotated[Identity, Depends(require_identity)]


def require_operator(identity: Known) -> Identity:
    """Only the operator, or everybody without `--auth`."""
    if not identity.is_operator:
        raise HTTPException(403, "this needs the operator's token; yours opens one client's page")
    return identity


RunKey = Annotated[str, Path(max_length=500, description="key of a run, see `/api/runs`")]
ClientNumber = Annotated[int, Path(ge=0, le=MAX_NUMBER)]


def require_client(identity: Known, console: ConsoleOf, run: RunKey, client: ClientNumber) -> Identity:
    """The operator, or the client that the address names."""
    if not identity.is_operator and (identity.run, identity.client) != (console.identity_of(run), client):
        raise HTTPException(403, "your token opens another client's page")
    return identity


ForOperator = Annotated[Identity, Depends(require_operator)]
ForClient = Annotated[Identity, Depends(require_client)]


def find_run(console: ConsoleOf, run: RunKey) -> FoundRun:
    """The run that the address names."""
    return console.find(run)


Run = Annotated[FoundRun, Depends(find_run)]
