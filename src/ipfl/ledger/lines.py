"""A round's line in the store: its typed rows, its checks, its metrics, its hash.

Checks and conversions follow from the fields of the row types. A new column of the ledger is three things: a
field of the row (`ipfl.core.rounds`), a column of its table and a new `STORE_FORMAT`, and what fills it in.

Rounds are chained: a round's hash covers the hash of the one before it, everything posted with it, as
canonical JSON, and the files that it wrote. To change a round unnoticed one has to change every hash after
it, up to the one that was signed, or that people wrote down.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ipfl.ledger.canonical import digest
from ipfl.ledger.database import StoreError
from ipfl.ledger.schema import ROW_TABLES
from ipfl.market.market_rows import ROW_TYPES, Figure

MAX_METRIC = 2**1000
"""Largest absolute value of a metric; metrics are stored as float64, which ends near 2**1024."""
METRIC_KEYS = ("cluster_probe_accuracy", "best_before")
"""Keys whose rows (a `Figure` each) are metrics, one per cluster."""
Check = Callable[[Any], Any]
"""Makes a value what the database gives back."""


def _to_whole(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def _to_real(value: Any) -> float:
    """0 instead of −0: SQLite keeps no other."""
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value) + 0.0


def _to_bool(value: Any) -> bool:
    """SQLite returns 0 or 1."""
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither true nor false")
    return bool(value)


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _to_word(words: Sequence[str], value: Any) -> str:
    if value not in words:
        raise ValueError(f"{value!r} is not one of {', '.join(words)}")
    return str(value)


def _or_none(check: Check, value: Any) -> Any:
    return None if value is None else check(value)


CHECKS: Mapping[Any, Check] = {
    int: _to_whole,
    int | None: partial(_or_none, _to_whole),
    float: _to_real,
    float | None: partial(_or_none, _to_real),
    bool: _to_bool,
    str: _to_text,
}
"""Of a field of each type; one with a few words is a text that is one of them."""


@cache
def checks_of(row_type: type[NamedTuple]) -> Mapping[str, Check]:
    """The check of each field of a row type."""
    return {name: _check_of(hint) for name, hint in get_type_hints(row_type).items()}


def _check_of(hint: Any) -> Check:
    if get_origin(hint) is Literal:
        return partial(_to_word, get_args(hint))
    if hint not in CHECKS:
        raise TypeError(f"there is no column for a field of type {hint}")
    return CHECKS[hint]


def check_rows(key: str, rows: Iterable[Sequence[Any]]) -> Sequence[Any]:
    """The rows of a key as typed rows, each value as the database will give it back.

    Raises:
        StoreError: A row of another shape.
    """
    row_type, checks = ROW_TYPES[key], checks_of(ROW_TYPES[key])
    try:
        return tuple(
            row_type(*[check(value) for check, value in zip(checks.values(), row, strict=True)])
            for row in rows
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{key} should be rows [{', '.join(checks)}], but one is not: {error}") from error


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


def run_hash(name: str, header: Mapping[str, Any]) -> str:
    """The hash that the first round of a run follows: of the run's name and header."""
    return digest({"run": name, "header": header})


@dataclass(frozen=True)
class Posting:
    """Everything that a round posts, with typed rows: what the store will give back."""

    round: int
    line: Mapping[str, Any]
    """What the round loop reported."""
    checkpoint: str | None
    """Name of the checkpoint that belongs to it."""
    files: Mapping[str, str]
    """SHA-256 of each file that the round wrote, by path in the run's folder."""

    def hash(self, previous: str) -> str:
        """The round's hash if it follows this one."""
        return digest({"previous": previous, **vars(self)})

    @property
    def rest(self) -> str:
        """The line as JSON, null for rows that have a table; the keys keep their order."""
        return json.dumps({k: None if k in ROW_TABLES else v for k, v in self.line.items()}, allow_nan=False)

    @property
    def metrics(self) -> dict[str, float]:
        """The single numbers of the line by dotted name, and of its rows those of `METRIC_KEYS`."""
        found: dict[str, float] = {}

        def walk(name: str, value: Any) -> None:
            if isinstance(value, Mapping):
                for key, inner in value.items():
                    walk(f"{name}.{key}" if name else key, inner)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                if abs(value) > MAX_METRIC:
                    raise StoreError(f"{name} is larger than a database can hold")
                found[name] = float(value) + 0.0

        walk("", self.line)
        for key in METRIC_KEYS:
            for cluster, value in by_cluster(self.line.get(key) or ()).items():
                walk(f"{key}.{cluster}", value)
        return found


def by_cluster(figures: Iterable[Figure]) -> dict[int, float | None]:
    """Cluster → value."""
    return {figure.cluster: figure.value for figure in figures}
