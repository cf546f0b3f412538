"""The ledger for other programs, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from ipfl.core import NO_CLUSTER
from ipfl.ledger.store import RunStore
from ipfl.market.market_rows import Transfer

CSV_COLUMNS = ("id", "round", "sequence", *Transfer._fields, "client_name")


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What a text begins with that a spreadsheet takes for a formula."""


def _as_text(value: str) -> str:
    """A text of somebody's, with a quotation mark before what a spreadsheet would compute."""
    return f"'{value}" if value.startswith(FORMULA_STARTS) else value


def csv_lines(store: RunStore) -> Iterator[str]:
    """A header, then a line per transfer; accounts by name, an empty cluster or name where there is none.

    Names come from whoever has the data, and people open the file in a spreadsheet: no cell is a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")

    def line(values: tuple[object, ...]) -> str:
        text.seek(0)
        text.truncate()
        writer.writerow(values)
        return text.getvalue()

    names = store.client_names
    yield line(CSV_COLUMNS)
    with store.snapshot() as reader:
        for posted in reader.transfers():
            source, target = posted.account_names
            cluster = "" if posted.transfer.cluster == NO_CLUSTER else posted.transfer.cluster
            named = {**posted.transfer._asdict(), "source": source, "target": target, "cluster": cluster}
            named["kind"] = _as_text(str(named["kind"]))
            place = _as_text(f"{store.name}/{posted.round}/{posted.sequence}")
            client_name = _as_text(names.get(posted.transfer.client, ""))
            yield line((place, posted.round, posted.sequence, *named.values(), client_name))
