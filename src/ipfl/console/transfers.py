"""The transfers of a run, searched and paged by the database.

Pages are found by the last transfer of the page before (round and sequence, the primary key), not by counting
rows from the start: the thousandth page is as quick as the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, tuple_

from ipfl.console.records import TransferPage, TransferRow
from ipfl.core import NO_CLUSTER
from ipfl.errors import InputError
from ipfl.ledger.reader import PostedTransfer, Reader
from ipfl.ledger.schema import transfers
from ipfl.market.market_rows import Transfer, TransferKind

TRANSFER_PLACE = re.compile(r"(-?\d{1,9})\.(\d{1,9})")


@dataclass(frozen=True)
class Search:
    """Which transfers are wanted; None: all."""

    client: int | None = None
    round: int | None = None
    kind: TransferKind | None = None
    cluster: int | None = None

    def where(self, run_id: int) -> list[ColumnElement[bool]]:
        """The search as conditions."""
        given = {name: getattr(self, name) for name in ("client", "round", "kind", "cluster")}
        chosen = [transfers.c[name] == value for name, value in given.items() if value is not None]
        return [transfers.c.run_id == run_id, *chosen]


def parse_place(text: str | None) -> tuple[int, int] | None:
    """Round and sequence of `3.17`.

    Raises:
        InputError: It is something else.
    """
    if text is None:
        return None
    found = TRANSFER_PLACE.fullmatch(text)
    if found is None:
        raise InputError("a place in the ledger is ROUND.SEQUENCE, such as 3.17")
    return int(found[1]), int(found[2])


def find_transfers(
    reader: Reader,
    names: Mapping[int, str],
    search: Search,
    after: str | None,
    until: str | None,
    limit: int,
) -> TransferPage:
    """A page of transfers.

    Args:
        reader: The run.
        names: Of its clients, if they have names.
        search: Which transfers.
        after: Place of the last transfer of the page before; None: from the start.
        until: Place of the first transfer of the page after, to go back; None: forwards.
        limit: Transfers on a page.
    """
    place = tuple_(transfers.c.round, transfers.c.sequence)
    where = search.where(reader.run_id)
    # What is at hand in every row is counted anyway: a count needs no row of its own.
    total = int(reader.connection.scalar(select(func.count()).select_from(transfers).where(*where)) or 0)
    ascending = (transfers.c.round, transfers.c.sequence)
    columns = [transfers.c[name] for name in ("round", "sequence", *Transfer._fields)]
    found = select(*columns).where(*where).limit(limit + 1)
    start, end = parse_place(after), parse_place(until)
    if end is not None:
        before = found.where(place < end).order_by(*(column.desc() for column in ascending))
        rows = list(reader.connection.execute(before))
        has_before, has_after = len(rows) > limit, True
        rows = rows[:limit][::-1]
    else:
        wanted = found if start is None else found.where(place > start)
        rows = list(reader.connection.execute(wanted.order_by(*ascending)))
        has_before, has_after = start is not None, len(rows) > limit
        rows = rows[:limit]
    shown = [_row(row, names) for row in rows]
    return TransferPage(
        total=total,
        transfers=shown,
        first=f"{shown[0].round}.{shown[0].sequence}" if shown and has_before else None,
        last=f"{shown[-1].round}.{shown[-1].sequence}" if shown and has_after else None,
    )


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

    part: list[str] = []
    for line in csv_lines(store):
        part.append(line)
        if len(part) == 500:
            yield "".join(part)
            part.clear()
    yield "".join(part)
