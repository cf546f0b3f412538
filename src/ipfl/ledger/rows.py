"""Typed rows in a database: columns, checks and conversions, all taken from the fields of the row's type.

A new column of the ledger is a new field of the row (`ipfl.core.rounds`), a migration that adds it, and the
place that fills it in: nothing here or elsewhere names columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from sqlalchemy import REAL, BigInteger, Boolean, Column, Double, Integer, Text

from ipfl.core.rounds import ROW_TYPES
from ipfl.ledger.database import StoreError

# SQLite's strict tables know INTEGER, REAL and TEXT only; its INTEGER holds 64 bits anyway.
WHOLE = BigInteger().with_variant(Integer, "sqlite")
REAL_NUMBER: Double[float] = Double().with_variant(REAL, "sqlite")
YES_NO = Boolean(create_constraint=False).with_variant(Integer, "sqlite")

TABLE_KEYS = ("bids", "seats", "contributions", "transfers")
"""Keys of a round's line whose rows have a table of their own, of the same name."""


def columns_of(row_type: type[NamedTuple]) -> list[Column[Any]]:
    """The columns of a table for rows of this type."""
    types: dict[type, Any] = {int: WHOLE, float: REAL_NUMBER, bool: YES_NO, str: Text}
    return [
        Column(name, types[kind], nullable=optional)
        for name, (kind, optional, _) in _fields(row_type).items()
    ]


def check_rows(key: str, rows: Iterable[Sequence[Any]]) -> tuple[Any, ...]:
    """The rows of a key as typed rows, each value as the database will give it back.

    Raises:
        StoreError: A row of another shape.
    """
    row_type = ROW_TYPES[key]
    fields = _fields(row_type)
    try:
        columns = list(zip(*rows, strict=True)) or [()] * len(fields)
        kept = [_check_column(column, *field) for column, field in zip(columns, fields.values(), strict=True)]
        return tuple(map(row_type, *kept))
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{key} should be rows [{', '.join(fields)}], but one is not: {error}") from error


Field = tuple[type, bool, tuple[str, ...]]
"""Type of a field, whether it may be None, and the only words that it may be (none: any)."""


def _fields(row_type: type[NamedTuple]) -> dict[str, Field]:
    return {name: _field(hint) for name, hint in get_type_hints(row_type).items()}


def _field(hint: Any) -> Field:
    if get_origin(hint) is Literal:
        return str, False, get_args(hint)
    options = get_args(hint) or (hint,)
    (kind,) = (option for option in options if option is not NoneType)
    return kind, NoneType in options, ()


def _check_column(values: Sequence[Any], kind: type, optional: bool, words: tuple[str, ...]) -> Sequence[Any]:
    if kind is int and {*map(type, values)} <= {int}:
        return values  # a round may have hundreds of thousands: no call for each of them
    if words and not {*values} <= {*words}:
        raise ValueError(f"{next(value for value in values if value not in words)!r} is not one of {words}")
    convert = CONVERSIONS[kind]
    return [None if optional and value is None else convert(value) for value in values]


def whole(value: Any) -> int:
    """A whole number."""
    if isinstance(value, bool) or int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)


def real(value: Any) -> float:
    """A finite number; 0 instead of −0: SQLite keeps no other."""
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value) + 0.0


CONVERSIONS: dict[type, Callable[[Any], Any]] = {int: whole, float: real, bool: bool, str: str}
