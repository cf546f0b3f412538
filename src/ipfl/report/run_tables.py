"""Runs as tables for the terminal: a list of them, the clients of one; 80 columns wide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ipfl.report.result_tables import (
    NO_VALUE,
    break_names,
    format_count,
    format_percent,
    plain_table,
)
from ipfl.results.overview import RunEntry

MIN_NAME = 10
"""Columns that the name of a run has at least."""


def _folded(name: str, width: int) -> str:
    """The path of a folder in lines that end at a slash, or between the settings of a variant."""
    lines = [""]
    for part in re.findall(r"[^/+]*[/+]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def runs_table(entries: Sequence[RunEntry], inside: Path, width: int = 80) -> Table:
    """A row per run; folders without what they have in common.

    Args:
        entries: The runs.
        inside: Where they were looked for.
        width: Columns of the terminal.
    """
    numbers = ["clients", "rounds", "seed", "acc. %"]
    others = ["method", "data", *numbers, "state"]
    rows = [(_run_name(entry, inside), _run_cells(entry), entry.state) for entry in entries]
    columns = zip(others, *(cells for _, cells, _ in rows), strict=True)
    room = max(MIN_NAME, width - sum(max(map(len, column)) + 2 for column in columns) - 3)
    table = plain_table("run", *others, right=numbers)
    break_names(table)
    for name, cells, state in rows:
        style = None if state == "finished" else "dim"
        table.add_row(escape(_folded(name, room)), *map(escape, cells), style=style)
    return table


def _run_name(entry: RunEntry, inside: Path) -> str:
    name = Path(entry.folder).relative_to(inside).as_posix()
    return inside.name if name == "." else name


def _run_cells(entry: RunEntry) -> list[str]:
    """The cells of a run beside its name."""
    is_whole = entry.rounds == entry.planned_rounds or entry.planned_rounds is None
    return [
        _text_or_dash(entry.method),
        _text_or_dash(entry.dataset),
        _text_or_dash(entry.clients),
        _text_or_dash(entry.rounds) if is_whole else f"{entry.rounds}/{entry.planned_rounds}",
        _text_or_dash(entry.seed),
        format_percent(entry.accuracy),
        entry.state,
    ]


CLIENT_COLUMNS = {
    "accuracy": "own model %",
    "global_accuracy": "global %",
    "asked": "asked",
    "trained": "trained",
    "tokens": "tokens",
    "paid": "paid",
    "earned": "earned",
    "returned": "returned",
}
"""Header of each figure of a client."""


def client_cells(
    rows: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row per client, by its name if it has one; columns without any value are left out."""
    shown = {key: text for key, text in CLIENT_COLUMNS.items() if any(r.get(key) is not None for r in rows)}
    cells = []
    for row in rows:
        name = names.get(row["client"], str(row["client"])) + (" (unseen)" if row.get("unseen") else "")
        figures = (
            format_percent(row[key]) if key.endswith("accuracy") else format_count(row[key]) for key in shown
        )
        cells.append([name, *figures])
    return ["client", *shown.values()], cells


def client_table(rows: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> Table:
    """A row per client."""
    headers, cells = client_cells(rows, names)
    table = plain_table(*headers, right=headers[1:] if names else headers)
    break_names(table)
    for row in cells:
        table.add_row(*map(escape, row))
    return table


def _text_or_dash(value: object) -> str:
    return NO_VALUE if value is None else str(value)
