"""The transfers of a run, searched and paged by the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic import BaseModel, Field

from ipfl.console.answers import TransferPage, TransferRow
from ipfl.console.console import MAX_NUMBER
from ipfl.core import NO_CLUSTER
from ipfl.ledger.reader import PostedTransfer, Reader, choose
from ipfl.market.market_rows import Transfer, TransferKind


class Search(BaseModel):
    """The transfers that are wanted (None: all), and a page of them."""

    client: int | None = Field(None, ge=0, le=MAX_NUMBER)
    round: int | None = Field(None, ge=-1, le=MAX_NUMBER)
    kind: TransferKind | None = None
    cluster: int | None = Field(None, ge=0, le=MAX_NUMBER)
    offset: int = Field(0, ge=0, le=MAX_NUMBER)
    limit: int = Field(50, ge=1, le=500)


def find_transfers(reader: Reader, names: Mapping[int, str], search: Search) -> TransferPage:
    """A page of transfers in the order posted; `names` are those of clients that have one."""
    where, values = choose(**search.model_dump(exclude={"offset", "limit"}))
    (total,) = reader.column(f"SELECT count(*) FROM transfers WHERE {where}", *values)
    rows = reader.connection.execute(
        f"SELECT round, sequence, {', '.join(Transfer._fields)} FROM transfers WHERE {where} "
        "ORDER BY round, sequence LIMIT ? OFFSET ?",
        [*values, search.limit, search.offset],
    )
    return TransferPage(total=total, offset=search.offset, transfers=[_row(row, names) for row in rows])


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
