"""The JSON API under `/api`: what the pages show, for programs. `/api/openapi.json` describes it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import FileResponse, StreamingResponse
from starlette.background import BackgroundTask

from ipfl.console import auction, client_page, figures, transfers
from ipfl.console.answers import (
    ClientDetail,
    ClientPage,
    ComparedRuns,
    Flow,
    HeatMap,
    MovementPage,
    News,
    Problem,
    RoundDetail,
    RunDetail,
    RunPage,
    RunRow,
    Series,
    State,
    Token,
    TransferPage,
)
from ipfl.console.console import (
    MAX_NUMBER,
    ClientNumber,
    ConsoleOf,
    ForClient,
    ForOperator,
    Run,
)

MAX_COMPARED = 12
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request cannot be met; `detail` says why."},
    401: {"model": Problem, "description": "No valid token."},
    403: {"model": Problem, "description": "The token does not open this."},
    404: {"model": Problem, "description": "There is no such run, client or round."},
    503: {"model": Problem, "description": "The run store cannot be read now."},
}
router = APIRouter(prefix="/api", responses=PROBLEMS)

Offset = Annotated[int, Query(ge=0, le=MAX_NUMBER)]
Limit = Annotated[int, Query(ge=1, le=500)]
RoundNumber = Annotated[int, Path(ge=0, le=MAX_NUMBER)]
RoundQuery = Annotated[int | None, Query(ge=-1, le=MAX_NUMBER)]


def select_runs(rows: list[RunRow], text: str, state: State | None) -> list[RunRow]:
    """The rows of a list of runs that hold all words of a text, and are in a state."""
    words = text.lower().split()

    def is_wanted(row: RunRow) -> bool:
        told = f"{row.name} {row.method} {row.dataset} {row.partition} {row.state}".lower()
        return all(word in told for word in words) and state in (None, row.state)

    return [row for row in rows if is_wanted(row)]


@router.get("/runs")
def list_runs(
    console: ConsoleOf,
    _: ForOperator,
    text: Annotated[str, Query(max_length=200)] = "",
    state: State | None = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> RunPage:
    """All runs, the newest first; `text` filters by name, method, data and state."""
    rows = select_runs(figures.list_runs(console.runs), text, state)
    return RunPage(total=len(rows), offset=offset, runs=rows[offset : offset + limit])


@router.get("/runs/{run}")
def get_run(console: ConsoleOf, _: ForOperator, run: Run) -> RunDetail:
    """One run: its settings, its newest figures, its traffic."""
    return figures.run_detail(console.runs, run)


@router.get("/runs/{run}/series")
def get_series(console: ConsoleOf, _: ForOperator, run: Run) -> Series:
    """Accuracy, PMA, participation, inequality and traffic over rounds."""
    with console.runs.read(run) as (_store, reader):
        return figures.series(reader)


@router.get("/runs/{run}/heat-map")
def get_heat_map(console: ConsoleOf, _: ForOperator, run: Run) -> HeatMap:
    """Accuracy of every server model on every hidden distribution."""
    with console.runs.read(run) as (_store, reader):
        return figures.heat_map(reader)


@router.get("/runs/{run}/flow")
def get_flow(console: ConsoleOf, _: ForOperator, run: Run) -> Flow:
    """Moves of clients between clusters."""
    with console.runs.read(run) as (_store, reader):
        return figures.flow(reader)


@router.get("/runs/{run}/rounds/{round}")
def get_round(
    console: ConsoleOf, _: ForOperator, run: Run, round: RoundNumber, offset: Offset = 0, limit: Limit = 50
) -> RoundDetail:
    """One round: who bid, who had a seat and why, the pools, the events."""
    with console.runs.read(run) as (store, reader):
        found = auction.round_detail(reader, store.client_names, round, offset, limit)
    if found is None:
        raise HTTPException(404, "this round is not committed")
    return found


@router.get("/runs/{run}/clients")
def list_clients(
    console: ConsoleOf, _: ForOperator, run: Run, offset: Offset = 0, limit: Limit = 50
) -> ClientPage:
    """The clients of a run, with what each paid and earned."""
    with console.runs.read(run) as (store, reader):
        return client_page.list_clients(reader, store.client_names, offset, limit)


@router.get("/runs/{run}/clients/{client}")
def get_client(console: ConsoleOf, _: ForClient, run: Run, client: ClientNumber) -> ClientDetail:
    """One client: account, wishes, accuracy against its threshold, stay or leave."""
    found = client_page.client_detail(console.runs, run, client)
    if found is None:
        raise HTTPException(404, "the run has no such client")
    return found


@router.get("/runs/{run}/clients/{client}/series")
def get_client_series(console: ConsoleOf, _: ForClient, run: Run, client: ClientNumber) -> Series:
    """Balance, first wish, contribution, accuracy and threshold of one client over rounds."""
    return client_page.client_series(console.runs, run, client)


@router.get("/runs/{run}/clients/{client}/movements")
def get_movements(
    console: ConsoleOf,
    _: ForClient,
    run: Run,
    client: ClientNumber,
    before: RoundQuery = None,
    limit: Limit = 25,
) -> MovementPage:
    """Payments and earnings of one client, round by round and in words, the newest first."""
    with console.runs.read(run) as (_store, reader):
        return client_page.movements(reader, client, before, limit)


@router.get(
    "/runs/{run}/clients/{client}/model",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
def get_model(console: ConsoleOf, _: ForClient, run: Run, client: ClientNumber) -> FileResponse:
    """The client's own model as a file."""
    handle = tempfile.NamedTemporaryFile(suffix=".safetensors", delete=False)  # noqa: SIM115
    handle.close()
    path = FilePath(handle.name)
    try:
        client_page.write_model(run, client, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(path, filename=f"client-{client}.safetensors", background=BackgroundTask(path.unlink))


@router.get("/runs/{run}/clients/{client}/statement")
def get_statement(_: ForClient, run: Run, client: ClientNumber) -> dict[str, Any]:
    """The client's signed statement of account; `ipfl ledger check` checks it anywhere."""
    return client_page.statement_json(run, client)


@router.post("/runs/{run}/clients/{client}/token")
def make_token(console: ConsoleOf, _: ForOperator, run: Run, client: ClientNumber) -> Token:
    """The token that opens this client's page and nothing else."""
    if console.tokens is None:
        raise HTTPException(403, "clients have tokens once the console is started with --auth")
    with console.runs.read(run) as (store, reader):
        if client not in reader.clients():
            raise HTTPException(404, "the run has no such client")
    return Token(token=console.tokens.client_token(store.begun, run.key, client))


@router.get("/runs/{run}/transfers")
def list_transfers(
    console: ConsoleOf,
    _: ForOperator,
    run: Run,
    search: Annotated[transfers.Search, Query()],
) -> TransferPage:
    """The ledger, searched and paged."""
    with console.runs.read(run) as (store, reader):
        return transfers.find_transfers(reader, store.client_names, search)


@router.get(
    "/runs/{run}/transfers.csv",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {}}}},
)
def export_transfers(console: ConsoleOf, _: ForOperator, run: Run) -> StreamingResponse:
    """All transfers as CSV."""
    lines: Iterator[str] = transfers.csv_of(console.runs.open(run))
    return StreamingResponse(
        lines,
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": 'attachment; filename="ledger.csv"'},
    )


@router.get("/compare")
def compare(
    console: ConsoleOf,
    _: ForOperator,
    run: Annotated[list[str], Query(min_length=2, max_length=MAX_COMPARED)],
    reference: Annotated[str | None, Query(max_length=500)] = None,
) -> ComparedRuns:
    """Runs side by side: convergence, and what each client gains over the reference."""
    chosen = [console.find(key) for key in dict.fromkeys(run)]
    return figures.compare_runs(console.runs, chosen, choose_reference(console, chosen, reference))


def choose_reference(console: Any, chosen: list[Any], wanted: str | None) -> Any:
    """The run that the others are measured against: the one asked for, else the reference method's."""
    if wanted:
        return console.find(wanted)
    from ipfl.methods import REFERENCE

    named = (one for one in chosen if figures.run_row(console.runs, one).method == REFERENCE)
    return next(named, chosen[0])


@router.get("/news")
def get_list_news(console: ConsoleOf, _: ForOperator) -> News:
    """The version of the list of runs: another one after any change."""
    return figures.list_news(console.runs)


@router.get("/runs/{run}/news")
def get_run_news(console: ConsoleOf, _: ForOperator, run: Run) -> News:
    """The version of a run: another one after every round, and at its end."""
    return figures.run_news(console.runs, run)


@router.get("/runs/{run}/clients/{client}/news")
def get_client_news(console: ConsoleOf, _: ForClient, run: Run, client: ClientNumber) -> News:
    """The same for one client's page."""
    return figures.run_news(console.runs, run)
