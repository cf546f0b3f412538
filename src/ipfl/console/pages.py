"""The pages that show runs. Every one is whole HTML that works before any script has run.

Charts fetch the JSON API. What starts or stops something is in `actions`.
"""

from __future__ import annotations

from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse

from ipfl.console import accounts, api, figures
from ipfl.console.auction import round_detail
from ipfl.console.console import ClientNumber, ConsoleOf, ForClient, ForOperator, Run
from ipfl.console.records import State
from ipfl.console.rendering import is_fragment, render
from ipfl.console.transfers import Search, find_transfers
from ipfl.core.client_names import find_client
from ipfl.core.rounds import TransferKind
from ipfl.errors import InputError

PAGE_SIZE = 50
RUNS_PER_PAGE = 100
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def show_runs(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    text: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[State | str, Query(max_length=20)] = "",
    offset: api.Offset = 0,
) -> Response:
    """All runs; as a fragment only their table."""
    every = figures.list_runs(console.runs)
    known = ("running", "finished", "unfinished", "unreadable")
    rows = api.select_runs(every, text, state if state in known else None)  # type: ignore[arg-type]
    return render(
        request,
        "runs_table.html" if is_fragment(request) else "runs.html",
        console,
        rows=rows[offset : offset + RUNS_PER_PAGE],
        total=len(rows),
        every=len(every),
        offset=offset,
        page=RUNS_PER_PAGE,
        text=text,
        state=state,
        failures=console.starter.failures(),
        starting=console.starter.starting(),
    )


@router.get("/compare")
def show_comparison(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    run: Annotated[list[str], Query(max_length=api.MAX_COMPARED)] = [],  # noqa: B006 (FastAPI copies it)
    reference: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:
    """Runs side by side."""
    chosen = [console.find(key) for key in dict.fromkeys(run)]
    if len(chosen) < 2:
        return render(request, "compare.html", console, compared=None, source="")
    measured = api.choose_reference(console, chosen, reference)
    compared = figures.compare_runs(console.runs, chosen, measured)
    query = urlencode([("run", one.key) for one in chosen] + [("reference", measured.key)])
    return render(request, "compare.html", console, compared=compared, source=f"/api/compare?{query}")


@router.get("/runs/{run}")
def show_run(request: Request, console: ConsoleOf, identity: ForOperator, run: Run) -> Response:
    """One run."""
    detail = api.get_run(console, identity, run)
    with console.runs.read(run) as (store, reader):
        newest = round_detail(reader, store.client_names, max(0, detail.done - 1), 0, PAGE_SIZE)
    return render(request, "run.html", console, run=detail, detail=newest, page=PAGE_SIZE)


@router.get("/runs/{run}/head")
def show_run_head(request: Request, console: ConsoleOf, identity: ForOperator, run: Run) -> Response:
    """The figures on top of a run's page, as a fragment."""
    return render(request, "run_head.html", console, run=api.get_run(console, identity, run))


@router.get("/runs/{run}/rounds")
def show_round(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    run: Run,
    round: Annotated[str, Query(max_length=40)] = "",
    offset: api.Offset = 0,
) -> Response:
    """The auction of a round, as a fragment; without a number the newest."""
    row = figures.run_row(console.runs, run)
    wanted = _number(round, "the round")
    number = row.done - 1 if wanted is None else wanted
    with console.runs.read(run) as (store, reader):
        found = round_detail(reader, store.client_names, number, offset, PAGE_SIZE)
    return render(
        request,
        "round.html",
        console,
        run=row,
        detail=found,
        number=number,
        page=PAGE_SIZE,
        is_newest=wanted is None,
    )


@router.get("/runs/{run}/clients")
def show_clients(
    request: Request, console: ConsoleOf, _: ForOperator, run: Run, offset: api.Offset = 0
) -> Response:
    """A part of a run's clients, as a fragment."""
    with console.runs.read(run) as (store, reader):
        members = accounts.list_clients(reader, store.client_names, offset, PAGE_SIZE)
        has_market = bool(store.header.get("rules"))
    shown = {"key": run.key, "has_market": has_market}
    return render(request, "clients_table.html", console, run=shown, members=members, page=PAGE_SIZE)


@router.get("/runs/{run}/clients/{client}")
def show_client(
    request: Request, console: ConsoleOf, _: ForClient, run: Run, client: ClientNumber
) -> Response:
    """One client."""
    detail = accounts.client_detail(console.runs, run, client)
    if detail is None:
        raise HTTPException(404, f"the run has no client {client}")
    row = figures.run_row(console.runs, run)
    with console.runs.read(run) as (_store, reader):
        moved = accounts.movements(reader, client, None, PAGE_SIZE)
    return render(request, "client.html", console, run=row, detail=detail, moved=moved, is_newest=True)


@router.get("/runs/{run}/clients/{client}/head")
def show_client_head(
    request: Request, console: ConsoleOf, _: ForClient, run: Run, client: ClientNumber
) -> Response:
    """The figures on top of a client's page, as a fragment."""
    detail = accounts.client_detail(console.runs, run, client)
    if detail is None:
        raise HTTPException(404, f"the run has no client {client}")
    return render(request, "client_head.html", console, run=figures.run_row(console.runs, run), detail=detail)


@router.get("/runs/{run}/clients/{client}/movements")
def show_movements(
    request: Request,
    console: ConsoleOf,
    _: ForClient,
    run: Run,
    client: ClientNumber,
    before: api.RoundQuery = None,
) -> Response:
    """A part of a client's movements, as a fragment."""
    with console.runs.read(run) as (_store, reader):
        moved = accounts.movements(reader, client, before, PAGE_SIZE)
    return render(
        request,
        "movements.html",
        console,
        run=figures.run_row(console.runs, run),
        client=client,
        moved=moved,
        is_newest=before is None,
    )


@router.post("/runs/{run}/clients/{client}/token")
def show_token(
    request: Request, console: ConsoleOf, identity: ForOperator, run: Run, client: ClientNumber
) -> Response:
    """A client's token, for the operator to hand out, as a fragment."""
    made = api.make_token(console, identity, run, client)
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


Short = Annotated[str, Query(max_length=40)]


@router.get("/runs/{run}/ledger")
def show_ledger(
    request: Request,
    console: ConsoleOf,
    _: ForOperator,
    run: Run,
    client: Annotated[str, Query(max_length=200)] = "",
    round: Short = "",
    kind: Short = "",
    cluster: Short = "",
    after: api.PlaceQuery = None,
    until: api.PlaceQuery = None,
) -> Response:
    """The ledger of a run; as a fragment only its table."""
    given = {"client": client, "round": round, "kind": kind, "cluster": cluster}
    problem, found = None, None
    try:
        wanted: TransferKind | None = kind if kind in get_args(TransferKind) else None  # type: ignore[assignment]
        number = -1 if round.strip().lower() == "opening" else _number(round, "the round", -1)
        with console.runs.read(run) as (store, reader):
            who = find_client(client.strip(), store.client_names) if client.strip() else None
            search = Search(who, number, wanted, _number(cluster, "the cluster"))
            found = find_transfers(reader, store.client_names, search, after, until, PAGE_SIZE)
    except InputError as error:
        problem = str(error)
    return render(
        request,
        "ledger_table.html" if is_fragment(request) else "ledger.html",
        console,
        run=figures.run_row(console.runs, run),
        found=found,
        problem=problem,
        given={name: value for name, value in given.items() if value},
        query=urlencode({name: value for name, value in given.items() if value}),
        kinds=get_args(TransferKind),
        check=console.verifier.result(run),
    )


@router.post("/runs/{run}/verification")
def verify(request: Request, console: ConsoleOf, _: ForOperator, run: Run) -> Response:
    """Begins a check, as a fragment."""
    row = figures.run_row(console.runs, run)
    return render(request, "verification.html", console, run=row, check=console.verifier.start(run))


@router.get("/runs/{run}/verification")
def show_verification(request: Request, console: ConsoleOf, _: ForOperator, run: Run) -> Response:
    """The state of a check, as a fragment."""
    row = figures.run_row(console.runs, run)
    return render(request, "verification.html", console, run=row, check=console.verifier.result(run))
