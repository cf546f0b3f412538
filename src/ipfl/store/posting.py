"""What one round posts: the round loop's line, taken apart into the rows of the tables, and its hash.

Rounds are chained: a round's hash covers the hash of the one before it and everything posted with it, as
canonical JSON. Whoever changes history has to change every hash after it, up to the one people wrote down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from ipfl.market.ledger import Kind
from ipfl.store import schema
from ipfl.store.database import StoreError

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """A key of the line whose rows have a table of their own."""

    table: Table
    kinds: tuple[Callable[[Any], Any], ...]
    """Of each value of a row: makes it what the database will give back."""

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
            return [tuple(k(v) for k, v in zip(self.kinds, row, strict=True)) for row in given]
        except (TypeError, ValueError, KeyError) as error:
            raise StoreError(
                f"{key} should be rows [{', '.join(self.columns)}], but one is not: {error}"
            ) from error


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _real(value: Any) -> float | None:
    # + 0.0 makes 0 of −0, which SQLite would do as well.
    return None if value is None else float(value) + 0.0


def _kind(value: Any) -> str:
    return Kind[value.upper()].name.lower()


PARTS: Mapping[str, Part] = {
    "wanted": Part(schema.bids, (_whole, _whole, _whole)),
    "seats": Part(schema.selections, (_whole, _whole, str, bool)),
    "contributions": Part(schema.contributions, (_whole, _whole, _real, _whole)),
    "transfers": Part(schema.transfers, (_kind, _whole, _whole, _whole, _whole, _whole)),
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
    """As the store will give it back."""
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
        whole = {
            key: [list(row) for row in rows[key]] if key in rows else value for key, value in rest.items()
        }
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
    except (TypeError, ValueError) as error:
        raise StoreError(f"{key} should be rows [cluster, figure], but one is not: {error}") from error
