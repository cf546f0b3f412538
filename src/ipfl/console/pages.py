"""The pages. Every one is whole HTML that works before any script has run; charts fetch the JSON API.

Links inside a page ask for the page again and take the part that they change (`hx-select`).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.templating import Jinja2Templates
from pydantic import BaseModel, Field

from ipfl.console import figures, json_api
from ipfl.console.access import COOKIE
from ipfl.console.answers import State
from ipfl.console.auction import round_detail
from ipfl.console.console import MAX_NUMBER, ClientNumber, ConsoleOf, ForClient, ForOperator, Run
from ipfl.console.found_runs import FoundRun
from ipfl.console.guard import peer_of
from ipfl.console.transfers import Search, find_transfers
from ipfl.core.client_names import find_client
from ipfl.errors import InputError
from ipfl.market.market_rows import TransferKind
from ipfl.report.ledger_tables import round_name
from ipfl.report.result_tables import format_size

PAGE_SIZE = 50
RUNS_PER_PAGE = 100
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
templates = Jinja2Templates(Path(__file__).parent / "templates")


def _in_percent(value: float) -> float:
    """Without the error of the last bits: one mean, summed in two orders, is shown as one number."""
    return round(100 * value, 9)


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "–" if value is None else f"{_in_percent(value):.1f} %"


def points(value: float | None) -> str:
    """A difference of shares in percentage points, or a dash."""
    return "–" if value is None else f"{_in_percent(value):+.1f} pts".replace("-", "−")


def tokens(value: int | None) -> str:
    """A number of tokens with thin spaces, or a dash."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f").replace("-", "−")


def ago(moment: float | None) -> str:
    """The time since something happened."""
    if moment is None:
        return ""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


templates.env.filters.update(
    percent=percent, points=points, tokens=tokens, ago=ago, size=format_size, round_label=round_name
)


def render(request: Request, template: str, console: Any, **values: Any) -> HTMLResponse:
    """A page with what all pages need."""
    shared = {
        "identity": console.identify(request),
        "has_auth": console.tokens is not None,
        "runs_folder": console.runs.folder,
        "page": PAGE_SIZE,
    }
    return templates.TemplateResponse(request, template, shared | values)


def is_fragment(request: Request) -> bool:
    """True if a script asks, to put a part of the answer into the page."""
    return request.headers.get("hx-request") == "true"


Short = Annotated[str, Query(max_length=40)]


@router.get("/")
def show_runs(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    text: Annotated[str, Query(max_length=200)] = "",
    state: Short = "",
    offset: json_api.Offset = 0,
) -> Response:
    """All runs."""
    every = figures.list_runs(console.runs)
    wanted: State | None = state if state in get_args(State) else None  # type: ignore[assignment]
    rows = json_api.select_runs(every, text, wanted)
    shown = rows[offset : offset + RUNS_PER_PAGE]
    counts = {"total": len(rows), "every": len(every), "offset": offset, "page": RUNS_PER_PAGE}
    return render(request, "runs.html", console, rows=shown, text=text, state=state, **counts)


@router.get("/compare")
def show_comparison(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    run: Annotated[list[str], Query(max_length=json_api.MAX_COMPARED)] = [],  # noqa: B006 (FastAPI copies it)
    reference: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:
    """Runs side by side."""
    chosen = list(dict.fromkeys(run))
    if len(chosen) < 2:
        return render(request, "compare.html", console, compared=None, source="")
    compared = json_api.compare(console, _, chosen, reference)
    query = urlencode([("run", key) for key in chosen] + [("reference", compared.reference)])
    return render(request, "compare.html", console, compared=compared, source=f"/api/compare?{query}")


@router.get("/runs/{run}")
def show_run(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    run: Run,
    round: Short = "",
    offset: json_api.Offset = 0,
) -> Response:
    """One run, with the auction of a round; without a number, of the newest."""
    wanted = _number(round, "the round")
    shown = figures.run_detail(console.runs, run)
    number = shown.done - 1 if wanted is None else wanted
    with console.runs.read(run) as (store, reader):
        detail = round_detail(reader, store.client_names, number, offset, PAGE_SIZE)
    given = {"number": number, "is_newest": wanted is None}
    return render(request, "run.html", console, run=shown, detail=detail, **given)


@router.get("/runs/{run}/clients")
def show_clients(
    request: Request, console: ConsoleOf, _: ForOperator, run: Run, offset: json_api.Offset = 0
) -> Response:
    """A part of a run's clients; the page of the run asks for it when it is there itself."""
    members = json_api.list_clients(console, _, run, offset, PAGE_SIZE)
    row = figures.run_row(console.runs, run)
    return render(request, "clients.html", console, run=row, members=members)


@router.get("/runs/{run}/clients/{client}")
def show_client(
    request: Request,
    console: ConsoleOf,
    _: ForClient,
    run: Run,
    client: ClientNumber,
    before: json_api.RoundQuery = None,
) -> Response:
    """One client, with its movements before a round; without one, the newest."""
    detail = json_api.get_client(console, _, run, client)
    moved = json_api.get_movements(console, _, run, client, before, PAGE_SIZE)
    row = figures.run_row(console.runs, run)
    return render(request, "client.html", console, run=row, detail=detail, moved=moved, before=before)


@router.post("/runs/{run}/clients/{client}/token")
def show_token(
    request: Request, console: ConsoleOf, identity: ForOperator, run: Run, client: ClientNumber
) -> Response:
    """A client's token, for the operator to hand out, as a fragment."""
    made = json_api.make_token(console, identity, run, client)
    return render(request, "token.html", console, token=made.token)


def _number(text: str, name: str, least: int = 0) -> int | None:
    """A whole number of a search field; None if it is empty."""
    if not text.strip():
        return None
    try:
        number = int(text.strip()[:20])
    except ValueError:
        raise InputError(f"{name} is a whole number") from None
    if not least <= number < 2**31:
        raise InputError(f"{name} is a number from {least} up")
    return number


class TypedSearch(BaseModel):
    """A search for transfers, as it was typed."""

    client: str = Field("", max_length=200)
    round: str = Field("", max_length=40)
    kind: str = Field("", max_length=40)
    cluster: str = Field("", max_length=40)
    offset: int = Field(0, ge=0, le=MAX_NUMBER)

    def meant(self, names: Mapping[int, str]) -> Search:
        """The search itself."""
        is_opening = self.round.strip().lower() == "opening"
        return Search(
            client=find_client(self.client.strip(), names) if self.client.strip() else None,
            round=-1 if is_opening else _number(self.round, "the round", -1),
            kind=self.kind if self.kind in get_args(TransferKind) else None,
            cluster=_number(self.cluster, "the cluster"),
            offset=self.offset,
            limit=PAGE_SIZE,
        )


@router.get("/runs/{run}/ledger")
def show_ledger(
    request: Request, console: ConsoleOf, _: ForOperator, run: Run, typed: Annotated[TypedSearch, Query()]
) -> Response:
    """The ledger of a run."""
    given = typed.model_dump(exclude={"offset"}, exclude_defaults=True)
    problem, found = None, None
    with console.runs.read(run) as (store, reader):
        head = store.head()
        try:
            found = find_transfers(reader, store.client_names, typed.meant(store.client_names))
        except InputError as error:
            problem = str(error)
    return render(
        request,
        "ledger.html",
        console,
        run=figures.run_row(console.runs, run),
        found=found,
        problem=problem,
        given=given,
        query=urlencode(given),
        kinds=get_args(TransferKind),
        head=head,
        command=_verify_command(run),
    )


def _verify_command(run: FoundRun) -> str:
    """The command that checks a run's history."""
    return shlex.join(["ipfl", "ledger", "verify", str(run.folder)])


@router.get("/login")
def show_login(request: Request, console: ConsoleOf) -> Response:
    """The form for a token."""
    return render(request, "login.html", console, problem=None)


@router.post("/login")
async def login(request: Request, console: ConsoleOf) -> Response:
    """Takes a token into a cookie that scripts cannot read and other sites cannot send."""
    if console.tokens is None:
        return RedirectResponse("/", 303)
    if not console.sign_ins.take(peer_of(request.scope)):
        return _refuse_login(request, console, 429, "Too many attempts. Wait a minute.")
    body = (await request.body()).decode("utf-8", "replace")  # its size is limited in front of here
    given = parse_qs(body, max_num_fields=10).get("token", [""])[0].strip()
    identity = console.tokens.identify(given)
    if identity is None:
        problem = "This token is not valid here. Copy it whole, without spaces."
        return _refuse_login(request, console, 401, problem)
    home = "/" if identity.is_operator else f"/runs/{identity.place}/clients/{identity.client}"
    response = RedirectResponse(home, 303)
    response.set_cookie(
        COOKIE,
        given,
        max_age=12 * 3600,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return response


def _refuse_login(request: Request, console: Any, status: int, problem: str) -> Response:
    answer = render(request, "login.html", console, problem=problem)
    answer.status_code = status
    return answer


@router.post("/logout")
def logout() -> Response:
    """Forgets the token."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response
