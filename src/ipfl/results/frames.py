"""A result as pandas tables: a row for each client, each round, each movement of tokens.

pandas is an extra, and imported when a table is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ipfl.core import NO_CLUSTER, ClientId
from ipfl.errors import InputError
from ipfl.ledger.schema import OPENING
from ipfl.market.bank import account_name
from ipfl.market.market_rows import Transfer
from ipfl.results.summaries import mean_of

if TYPE_CHECKING:
    import pandas as pd

    from ipfl.results.result import Result
    from ipfl.study.comparison import Comparison

LEDGER_COLUMNS = ("round", "sequence", "kind", "client", "source", "target", "amount", "cluster")
ROUND_FIGURES = ("personalized_accuracy", "global_accuracy", "unseen_accuracy", "pma")
"""Figures of an evaluation that are a mean over clients."""


def make_frame(rows: list[dict[str, Any]], columns: tuple[str, ...] | None = None) -> pd.DataFrame:
    """A table of rows.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise InputError(
            'pandas is not installed; install the extra with: pip install "ipfl[pandas]"'
        ) from error
    frame = pd.DataFrame(rows, columns=None if columns is None else list(columns))
    empty = [name for name in frame.columns if len(frame) and frame[name].isna().all()]
    return frame.astype(dict.fromkeys(empty, "float64"))  # None would be an object, which has no mean


def client_frame(result: Result) -> pd.DataFrame:
    """A row for each client that is known, by ascending id."""
    return _with_names(make_frame(client_rows(result)), result)


def _with_names(frame: pd.DataFrame, result: Result) -> pd.DataFrame:
    """The table with a column `name` after `client`, where clients have names."""
    if names := result.summary.get("client_names"):
        shown = [names.get(str(client)) for client in frame["client"]]
        frame.insert(frame.columns.get_loc("client") + 1, "name", shown)
    return frame


def client_rows(result: Result) -> list[dict[str, Any]]:
    """The same without pandas."""
    last = result.last
    accuracy = {} if last is None else {**last.personalized, **last.unseen}
    shared, goal = ({}, {}) if last is None else (last.shared, last.goal)
    unseen = frozenset() if last is None else frozenset(last.unseen)
    seats = [seat for line in result.history for seat in line["seats"]]
    asked = Counter(seat.client for seat in seats)
    trained = Counter(seat.client for seat in seats if seat.delivered)
    tokens = _token_columns(result)
    return [
        {
            "client": client,
            "accuracy": accuracy.get(client),
            "global_accuracy": shared.get(client),
            "goal_accuracy": goal.get(client),
            "unseen": client in unseen,
            "asked": asked[client],
            "trained": trained[client],
            **{name: column[client] for name, column in tokens.items()},
        }
        for client in _known_clients(result, {*accuracy, *asked})
    ]


def _known_clients(result: Result, seen: set[ClientId]) -> list[ClientId]:
    """All clients; those of whom something is told, if the data is not there."""
    try:
        everyone = () if result.source is None else result.source.clients
    except InputError:
        everyone = ()
    return sorted({*seen, *everyone})


def _token_columns(result: Result) -> dict[str, Counter[ClientId]]:
    """The tokens that each client has, paid, earned and got back; nothing without a market.

    A client has what the issuer gave it, less what it paid, and what it earned and got back.
    """
    moved = [transfer for _, _, transfer in _transfers(result)]
    if not moved:
        return {}
    paid, received = Counter[ClientId](), Counter[ClientId]()
    earned, returned = Counter[ClientId](), Counter[ClientId]()
    for transfer in moved:
        paid[transfer.source] += transfer.amount
        received[transfer.target] += transfer.amount
        if transfer.kind == "reward":
            earned[transfer.client] += transfer.amount
        elif transfer.kind in ("refund", "reimbursement"):
            returned[transfer.target] += transfer.amount
    balance = Counter({client: received[client] - paid[client] for client in {*paid, *received}})
    return {"tokens": balance, "paid": paid, "earned": earned, "returned": returned}


def round_frame(result: Result) -> pd.DataFrame:
    """A row for each round."""
    rows = []
    for line in result.history:
        evaluation = line.get("evaluation", {})
        figures = {name: evaluation.get(name) for name in ROUND_FIGURES}
        rows.append(
            {
                "round": line["round"],
                "clients": line["clients"],
                "asked": len({seat.client for seat in line["seats"]}),
                "trained": len({seat.client for seat in line["seats"] if seat.delivered}),
                **{name: None if figure is None else figure["mean"] for name, figure in figures.items()},
                "purity": evaluation.get("purity"),
                "tokens_moved": sum(transfer.amount for transfer in line.get("transfers", ())),
                "bytes_down": line["bytes_down"],
                "bytes_up": line["bytes_up"],
                "events": len(line["events"]),
                "rolled_back": bool(line.get("rolled_back")),
            }
        )
    return make_frame(rows)


def ledger_frame(result: Result) -> pd.DataFrame:
    """A row for each movement of tokens, in order."""
    rows = [
        {
            "round": round,
            "sequence": sequence,
            "kind": transfer.kind,
            "client": transfer.client,
            "source": account_name(transfer.source),
            "target": account_name(transfer.target),
            "amount": transfer.amount,
            "cluster": None if transfer.cluster == NO_CLUSTER else transfer.cluster,
        }
        for round, sequence, transfer in _transfers(result)
    ]
    frame = make_frame(rows, LEDGER_COLUMNS)
    frame["cluster"] = frame["cluster"].astype("Int64")  # whole numbers, where there is one
    return _with_names(frame, result)


def _transfers(result: Result) -> Iterator[tuple[int, int, Transfer]]:
    """Round, place in the round, and transfer."""
    for sequence, transfer in enumerate(result.opening):
        yield OPENING, sequence, transfer
    for line in result.history:
        for sequence, transfer in enumerate(line.get("transfers", ())):
            yield line["round"], sequence, transfer


def comparison_frame(comparison: Comparison) -> pd.DataFrame:
    """A row for each method of a comparison."""
    rows = []
    for label, entry in comparison.entries.items():
        figures = dict(entry.figures())
        figures |= figures.pop("metrics", None) or {}  # a column for each
        means = {name: mean_of(figures[name]) for name in figures if name not in ("seeds", "failures")}
        rows.append({"method": label, **means, "runs": len(entry.results), "failed": len(entry.failures)})
    return make_frame(rows)
