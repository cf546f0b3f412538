"""The transfers of a run, searched and paged by the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, func, select

from ipfl.console.answers import TransferPage, TransferRow
from ipfl.core import NO_CLUSTER
from ipfl.ledger.reader import PostedTransfer, Reader
from ipfl.ledger.schema import transfers
from ipfl.market.market_rows import Transfer, TransferKind


@dataclass(frozen=True)
class Search:
    """The transfers that are wanted; None: all."""

    client: int | None = None
    round: int | None = None
    kind: TransferKind | None = None
    cluster: int | None = None

    def where(self, run_id: int) -> list[ColumnElement[bool]]:
        """The search as conditions."""
        given = {name: getattr(self, name) for name in ("client", "round", "kind", "cluster")}
        chosen = [transfers.c[name] == value for name, value in given.items() if value is not None]
        return [transfers.c.run_id == run_id, *chosen]


def find_transfers(
    reader: Reader, names: Mapping[int, str], search: Search, offset: int, limit: int
) -> TransferPage:
    """A page of transfers in the order posted; `names` are those of clients that have one."""
    where = search.where(reader.run_id)
    # What is at hand in every row is counted anyway: a count needs no row of its own.
    total = int(reader.connection.scalar(select(func.count()).select_from(transfers).where(*where)) or 0)
    columns = [transfers.c[name] for name in ("round", "sequence", *Transfer._fields)]
    ordered = select(*columns).where(*where).order_by(transfers.c.round, transfers.c.sequence)
    rows = reader.connection.execute(ordered.offset(offset).limit(limit))
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
