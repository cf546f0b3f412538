"""What one round posts: the round loop's line, taken apart into the rows of the tables, and its hash.

Rounds are chained: a round's hash covers the hash of the one before it and everything posted with it, as
canonical JSON. Whoever changes history has to change every hash after it, up to the one people wrote down.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from ipfl.market.ledger import Kind
from ipfl.store import schema
from ipfl.store.database import StoreError

Row = tuple[Any, ...]
MOST = 2**1000
"""Figures are kept as floating-point numbers, which end a little later."""


@dataclass(frozen=True)
class Part:
    """A key of the line whose rows have a table of their own."""

    table: Table
    kinds: tuple[Callable[[Sequence[Any]], Sequence[Any]], ...]
    """Of each column: makes its values what the database will give back."""

    @property
    def columns(self) -> list[str]:
        """Names of the values of a row."""
        return [column.name for column in self.table.columns][3:]

    def rows(self, key: str, given: Any) -> list[Row]:
        """The rows as the database will give them back.

        Raises:
            StoreError: A row of another shape.
        """
        try:
            columns = list(zip(*given, strict=True)) or [()] * len(self.kinds)
            kept = [kind(column) for kind, column in zip(self.kinds, columns, strict=True)]
            return list(zip(*kept, strict=True))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise StoreError(
                f"{key} should be rows [{', '.join(self.columns)}], but one is not: {error}"
            ) from error


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _real(value: Any) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value) + 0.0  # 0 instead of −0: SQLite keeps no other


def _kind(value: Any) -> str:
    return Kind[value.upper()].name.lower()


def _wholes(values: Sequence[Any]) -> Sequence[int]:
    # A round may have hundreds of thousands: the usual case must not cost a call for each of them.
    return values if {*map(type, values)} <= {int} else [_whole(value) for value in values]


def _reals(values: Sequence[Any]) -> Sequence[float | None]:
    return [_real(value) for value in values]


def _kinds(values: Sequence[Any]) -> Sequence[str]:
    names = {value: _kind(value) for value in {*values}}
    return [names[value] for value in values]


def _words(values: Sequence[Any]) -> Sequence[str]:
    return [str(value) for value in values]


def _yes_no(values: Sequence[Any]) -> Sequence[bool]:
    return [bool(value) for value in values]


PARTS: Mapping[str, Part] = {
    "wanted": Part(schema.bids, (_wholes, _wholes, _wholes)),
    "seats": Part(schema.selections, (_wholes, _wholes, _words, _yes_no)),
    "contributions": Part(schema.contributions, (_wholes, _wholes, _reals, _wholes)),
    "transfers": Part(schema.transfers, (_kinds, _wholes, _wholes, _wholes, _wholes, _wholes)),
}
"""Key of the line → where its rows go."""

PER_CLUSTER = ("cluster_probe_accuracy", "best_before")
"""Keys whose rows are [cluster, figure]: metrics, one per cluster."""


def canonical(content: Any) -> str:
    """JSON with one spelling for one content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: Any) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def anchor(name: str, header: Mapping[str, Any]) -> str:
    """What the first round of a run is chained to: the run itself."""
    return digest({"run": name, "header": header})


def round_hash(previous: str, round: int, checkpoint: str | None, line: Mapping[str, Any]) -> str:
    """The hash of a round, over the hash before it and everything posted with it."""
    return digest({"previous": previous, "round": round, "checkpoint": checkpoint, "line": line})


@dataclass(frozen=True)
class Posting:
    """Everything that a round posts."""

    round: int
    checkpoint: str | None
    line: dict[str, Any]
    """What the store will give back."""
    rows: dict[str, list[Row]]
    """By key of the line."""

    @classmethod
    def of(cls, round: int, line: Mapping[str, Any], checkpoint: str | None) -> Posting:
        """Takes a line apart.

        Raises:
            StoreError: The line is not JSON, or a known key has rows of another shape.
        """
        rows = {key: part.rows(key, line[key]) for key, part in PARTS.items() if key in line}
        try:
            rest = json.loads(
                json.dumps({k: None if k in rows else v for k, v in line.items()}, allow_nan=False)
            )
        except (TypeError, ValueError) as error:
            raise StoreError(f"round {round} cannot be kept as JSON: {error}") from error
        whole = {key: rows.get(key, value) for key, value in rest.items()}
        return cls(round, checkpoint, whole, rows)

    def hash(self, previous: str) -> str:
        """The round's hash if it follows this one."""
        return round_hash(previous, self.round, self.checkpoint, self.line)

    @property
    def rest(self) -> str:
        """The line as JSON, null where a table holds the rows; keys in their order."""
        return json.dumps({k: None if k in self.rows else v for k, v in self.line.items()}, allow_nan=False)


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The single numbers of a line by dotted name; lists are left out, but for figures per cluster."""
    found: dict[str, float] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else key, inner)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) > MOST:
                raise StoreError(f"{name} is beyond what a database can hold")
            found[name] = float(value) + 0.0

    walk("", line)
    for key in PER_CLUSTER:
        for cluster, figure in per_cluster(line, key).items():
            walk(f"{key}.{cluster}", figure)
    return found


def per_cluster(line: Mapping[str, Any], key: str) -> dict[int, float | None]:
    """Rows [cluster, figure] of a line as a mapping; empty where there are none."""
    given: Sequence[Sequence[Any]] = line.get(key) or ()
    try:
        return {_whole(cluster): _real(figure) for cluster, figure in given}
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{key} should be rows [cluster, figure], but one is not: {error}") from error
