"""The transfers of a run, searched and paged by the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from ipfl.console.answers import TransferPage, TransferRow
from ipfl.core import NO_CLUSTER
from ipfl.ledger.reader import PostedTransfer, Reader, choose
from ipfl.market.market_rows import Transfer, TransferKind


@dataclass(frozen=True)
class Search:
    """The transfers that are wanted; None: all."""

    client: int | None = None
    round: int | None = None
    kind: TransferKind | None = None
    cluster: int | None = None


def find_transfers(
    reader: Reader, names: Mapping[int, str], search: Search, offset: int, limit: int
) -> TransferPage:
    """A page of transfers in the order posted; `names` are those of clients that have one."""
    where, values = choose(**asdict(search))
    (total,) = reader.column(f"SELECT count(*) FROM transfers WHERE {where}", *values)
    rows = reader.connection.execute(
        f"SELECT round, sequence, {', '.join(Transfer._fields)} FROM transfers WHERE {where} "
        "ORDER BY round, sequence LIMIT ? OFFSET ?",
        [*values, limit, offset],
    )
    return TransferPage(total=total, offset=offset, transfers=[_row(row, names) for row in rows])


def _row(values: Any, names: Mapping[int, str]) -> TransferRow:
    number, sequence, *rest = values
    posted = PostedTransfer(number, sequence, Transfer(*rest))
    source, target = posted.account_names
    moved = posted.transfer
    return TransferRow(
        round=number,
        sequence=sequence,
        kind=moved.kind,
        source=names.get(moved.source, source),
        target=names.get(moved.target, target),
        amount=moved.amount,
        cluster=None if moved.cluster == NO_CLUSTER else moved.cluster,
        client=moved.client,
        name=names.get(moved.client),
        reason=posted.reason,
    )


def csv_of(store: Any) -> Iterator[str]:
    """All transfers as CSV, some hundred lines at a time: a line each would be a step each for the server."""
    from ipfl.ledger.export import csv_lines

    lines = csv_lines(store)
    while part := "".join(islice(lines, 500)):
        yield part
