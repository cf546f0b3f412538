"""Typed rows in a database: columns, checks and conversions, all taken from the fields of the row's type.

A new column of the ledger is three things: a field of the row (`ipfl.core.rounds`), the last one and with a
default; a migration that adds the column; the code that fills it in. Rows that were posted before hold the
default, and keep their hash (`hashed_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from sqlalchemy import REAL, BigInteger, Boolean, Column, Double, Integer, Text
from sqlalchemy.types import TypeEngine

from ipfl.core.rounds import ROW_TYPES, Tokens
from ipfl.ledger.database import StoreError

TABLE_KEYS = ("bids", "seats", "contributions", "transfers")
"""Keys of a round's line whose rows have a table of their own, of the same name."""

# SQLite's strict tables know INTEGER, REAL and TEXT only; its INTEGER holds 64 bits anyway.
BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
DOUBLE: Double[float] = Double().with_variant(REAL, "sqlite")
BOOLEAN = Boolean(create_constraint=False).with_variant(Integer, "sqlite")


def _to_whole(value: Any) -> int:
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


VALUE_TYPES: Mapping[Any, tuple[TypeEngine[Any], Callable[[Any], Any]]] = {
    int: (Integer(), _to_whole),
    Tokens: (BIG_INTEGER, _to_whole),
    float: (DOUBLE, _to_real),
    bool: (BOOLEAN, _to_bool),
    str: (Text(), _to_text),
}
"""Type of a field → type of its column, and the function that makes a value what the database gives back."""


class RowField(NamedTuple):
    """What a field of a row may hold."""

    value_type: Any
    """A key of `VALUE_TYPES`."""
    is_optional: bool
    """Whether it may be None."""
    words: tuple[str, ...]
    """The only texts that it may be; empty: any."""


def columns_of(row_type: type[NamedTuple]) -> list[Column[Any]]:
    """The columns of a table for rows of this type."""
    return [
        Column(name, VALUE_TYPES[field.value_type][0], nullable=field.is_optional)
        for name, field in fields_of(row_type).items()
    ]


def check_rows(key: str, rows: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """The rows of a key as typed rows, each value as the database will give it back.

    Raises:
        StoreError: A row of another shape.
    """
    row_type = ROW_TYPES[key]
    fields = fields_of(row_type)
    try:
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        checked = [
            _check_column(column, field) for column, field in zip(columns, fields.values(), strict=True)
        ]
        return tuple(map(row_type, *checked))
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{key} should be rows [{', '.join(fields)}], but one is not: {error}") from error


def hashed_rows(key: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The rows as a round's hash covers them: without final values that are the default of their field.

    A field that a later release adds does not change the hash of what was posted before it.
    """
    defaults = ROW_TYPES[key]._field_defaults
    if not defaults:
        return rows
    # From the last field backwards: only the last fields of a row can have defaults.
    by_place = list(reversed(defaults.values()))

    def shorten(row: Sequence[Any]) -> Sequence[Any]:
        kept = len(row)
        for value, default in zip(reversed(row), by_place, strict=False):
            if value != default:
                break
            kept -= 1
        return row[:kept]

    return [shorten(row) for row in rows]


@cache
def fields_of(row_type: type[NamedTuple]) -> Mapping[str, RowField]:
    """The fields of a row type by name."""
    return {name: _field(hint) for name, hint in get_type_hints(row_type, include_extras=True).items()}


def _field(hint: Any) -> RowField:
    is_union = get_origin(hint) in (Union, UnionType)
    (option, *others) = (one for one in (get_args(hint) if is_union else (hint,)) if one is not NoneType)
    words = get_args(option) if get_origin(option) is Literal else ()
    value_type = str if words else option
    if others or value_type not in VALUE_TYPES:
        raise TypeError(f"there is no column for a field of type {hint}")
    return RowField(value_type, is_union, words)


def _check_column(values: Sequence[Any], field: RowField) -> Sequence[Any]:
    _, convert = VALUE_TYPES[field.value_type]
    if convert is _to_whole and {*map(type, values)} <= {int}:
        return values  # a round may have hundreds of thousands: no call for each of them
    if field.words:
        allowed = {*field.words, None} if field.is_optional else {*field.words}
        if others := {*values} - allowed:
            raise ValueError(f"{others.pop()!r} is not one of {', '.join(field.words)}")
        return values
    return [None if field.is_optional and value is None else convert(value) for value in values]
