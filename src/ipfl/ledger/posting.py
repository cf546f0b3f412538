"""What one round posts: the round loop's line, its rows in tables of their own, and its hash.

Rounds are chained: a round's hash covers the hash of the one before it and everything posted with it, as
canonical JSON. To change a round unnoticed one has to change every hash after it, up to the one that people
wrote down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ipfl.core.rounds import ROW_TYPES, Figure
from ipfl.ledger.database import StoreError
from ipfl.ledger.rows import TABLE_KEYS, check_rows, hashed_rows

STORE_FORMAT = 2
"""Version of what the store keeps of a run, in its header. Runs without one have version 1: bids were called
`wanted`, and events were sentences."""
MAX_METRIC = 2**1000
"""Largest absolute value of a metric; metrics are stored as float64, which ends near 2**1024."""
METRIC_KEYS = ("cluster_probe_accuracy", "best_before")
"""Keys whose rows (a `Figure` each) are metrics, one per cluster."""


def canonical(content: Any) -> str:
    """JSON in one fixed form: equal contents give equal text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: Any) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def run_hash(name: str, header: Mapping[str, Any]) -> str:
    """The hash that the first round of a run follows: of the run's name and header."""
    return digest({"run": name, "header": header})


def round_hash(previous: str, round: int, checkpoint: str | None, line: Mapping[str, Any]) -> str:
    """The hash of a round, over the hash before it and everything posted with it."""
    hashed = {key: hashed_rows(key, value) if key in ROW_TYPES else value for key, value in line.items()}
    return digest({"previous": previous, "round": round, "checkpoint": checkpoint, "line": hashed})


@dataclass(frozen=True)
class Posting:
    """Everything that a round posts."""

    round: int
    checkpoint: str | None
    line: dict[str, Any]
    """What the store will give back, with typed rows."""

    @classmethod
    def make(cls, round: int, line: Mapping[str, Any], checkpoint: str | None) -> Posting:
        """Checks a line.

        Raises:
            StoreError: The line is not JSON, or a key has rows of another shape.
        """
        return cls(round, checkpoint, check_line(round, line))

    def hash(self, previous: str) -> str:
        """The round's hash if it follows this one."""
        return round_hash(previous, self.round, self.checkpoint, self.line)

    @property
    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Rows that have tables of their own, by key of the line."""
        return {key: self.line[key] for key in TABLE_KEYS if key in self.line}

    @property
    def rest(self) -> str:
        """The line as JSON, null for rows that have a table; the keys keep their order."""
        return json.dumps({k: None if k in TABLE_KEYS else v for k, v in self.line.items()}, allow_nan=False)


def check_line(round: int, line: Mapping[str, Any]) -> dict[str, Any]:
    """A line with typed rows, and everything else as JSON gives it back.

    Raises:
        StoreError: It is not JSON, or a key has rows of another shape.
    """
    rows = {key: check_rows(key, line[key]) for key in ROW_TYPES if key in line}
    try:
        others = {key: value for key, value in line.items() if key not in rows}
        rest = json.loads(json.dumps(others, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StoreError(f"round {round} cannot be kept as JSON: {error}") from error
    return {key: rows[key] if key in rows else rest[key] for key in line}


def metrics_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The single numbers of a line by dotted name, and of its rows those of `METRIC_KEYS`."""
    found: dict[str, float] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else key, inner)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) > MAX_METRIC:
                raise StoreError(f"{name} is larger than a database can hold")
            found[name] = float(value) + 0.0

    walk("", line)
    for key in METRIC_KEYS:
        for cluster, value in by_cluster(line.get(key) or ()).items():
            walk(f"{key}.{cluster}", value)
    return found


def by_cluster(figures: Iterable[Figure]) -> dict[int, float | None]:
    """Cluster → value."""
    return {figure.cluster: figure.value for figure in figures}
