"""Columns, checks and conversions of typed rows: all follow from the fields of a row type."""

from typing import Literal, NamedTuple

import pytest
from sqlalchemy import Column, MetaData, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from ipfl.core import Event, Seat
from ipfl.ledger import lines
from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import (
    TABLE_KEYS,
    check_rows,
    columns_of,
)
from ipfl.ledger.schema import row_tables
from ipfl.market.market_rows import ROW_TYPES, Bid, Contribution, Figure, Tokens, Transfer


class Everything(NamedTuple):
    """A field of every type that a row may have."""

    count: int
    amount: Tokens
    share: float
    is_new: bool
    kind: Literal["a", "b"]
    text: str
    maybe_count: int | None
    maybe_share: float | None


@pytest.fixture
def everything(monkeypatch):
    """The key `everything`, as if a round reported such rows."""
    monkeypatch.setitem(ROW_TYPES, "everything", Everything)


VALID = (1, 2**40, 0.5, True, "a", "words", None, None)


def sql_types(row_type, dialect):
    table = Table("t", MetaData(), *columns_of(row_type))
    lines = str(CreateTable(table).compile(dialect=dialect)).splitlines()
    return [line.strip().rstrip(",") for line in lines if line.startswith("\t")]


def test_columns_of_every_type():
    assert sql_types(Everything, postgresql.dialect()) == [
        "count INTEGER NOT NULL",
        "amount BIGINT NOT NULL",
        "share DOUBLE PRECISION NOT NULL",
        "is_new BOOLEAN NOT NULL",
        "kind TEXT NOT NULL",
        "text TEXT NOT NULL",
        "maybe_count INTEGER",
        "maybe_share DOUBLE PRECISION",
    ]
    # Strict tables of SQLite have no other types.
    types = {line.split()[1] for line in sql_types(Everything, sqlite.dialect())}
    assert types == {"INTEGER", "REAL", "TEXT"}


@pytest.mark.parametrize("key", TABLE_KEYS)
def test_tables_have_the_fields_of_their_rows(key):
    place = ["run_id", "round", "sequence"]
    columns: list[Column] = list(row_tables[key].columns)
    assert [column.name for column in columns] == [*place, *ROW_TYPES[key]._fields]
    assert row_tables[key].name == key


@pytest.mark.parametrize("hint", [list[int], int | str, bytes, tuple[int, ...], int | float | None])
def test_a_type_that_no_column_can_hold(hint):
    class Row(NamedTuple):
        client: int
        other: hint

    with pytest.raises(TypeError, match="there is no column for a field of type"):
        columns_of(Row)


def test_rows_are_typed():
    assert check_rows("best_before", [[2, 0.5], (5, None)]) == (Figure(2, 0.5), Figure(5, None))
    assert isinstance(check_rows("best_before", [[2, 0.5]])[0], Figure)
    assert check_rows("best_before", []) == ()
    assert check_rows("events", [["collapse", None, "x"]]) == (Event("collapse", None, "x"),)


def test_values_become_what_the_database_returns():
    """Whole floats are whole numbers, 0 and 1 are booleans, and zero has no sign."""
    (seat,) = check_rows("seats", [[2.0, 0, "random", 1, 0]])
    assert str(seat) == str(Seat(2, 0, "random", True, False))
    (bid,) = check_rows("bids", [[2, 1.0, 0, -0.0, 1]])
    assert str(bid) == str(Bid(2, 1, 0, 0.0, True))
    assert check_rows("bids", [[2, 1, 0, None, 0]]) == (Bid(2, 1, 0),)
    (contribution,) = check_rows("contributions", [[2, 0, -0.0, 1]])
    assert str(contribution) == str(Contribution(2, 0, 0.0, 1))
    (figure,) = check_rows("best_before", [[0, 1]])
    assert str(figure) == str(Figure(0, 1.0))
    assert check_rows("best_before", [[0, None]]) == (Figure(0, None),)
    assert check_rows("transfers", [["bid", 2, -2, 2**62, 0, 2]]) == (Transfer("bid", 2, -2, 2**62, 0, 2),)


def test_every_type_is_checked(everything):
    assert check_rows("everything", [VALID]) == (Everything(*VALID),)
    assert check_rows("everything", [(*VALID[:6], 3, 0.25)]) == (Everything(*VALID[:6], 3, 0.25),)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("count", True, "True is not a whole number"),
        ("count", 1.5, "1.5 is not a whole number"),
        ("count", None, "None"),
        ("count", "x", "'x'"),
        ("amount", float("inf"), "infinity"),
        ("amount", float("nan"), "NaN"),
        ("share", float("nan"), "nan is not a finite number"),
        ("share", None, "None"),
        ("share", "x", "real number"),
        ("is_new", 2, "2 is neither true nor false"),
        ("is_new", None, "None is neither true nor false"),
        ("kind", "c", "'c' is not one of a, b"),
        ("kind", None, "None is not one of a, b"),
        ("kind", [], "[] is not one of a, b"),
        ("text", 5, "5 is not text"),
        ("text", b"x", "b'x' is not text"),
        ("maybe_count", False, "False is not a whole number"),
        ("maybe_share", float("inf"), "inf is not a finite number"),
    ],
)
def test_other_values_are_refused(everything, field, value, complaint):
    wrong = Everything(*VALID)._replace(**{field: value})
    with pytest.raises(StoreError, match=r"everything should be rows \[count, amount, share, .*") as caught:
        check_rows("everything", [VALID, wrong])
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("rows", [None, 5, [1], [[1]], [[1, 0.5, 3]], [[1, 0.5], [1]], {"a": 1}])
def test_other_shapes_are_refused(rows):
    with pytest.raises(StoreError, match=r"best_before should be rows \[cluster, value\], but one is not"):
        check_rows("best_before", rows)


def test_the_metrics_come_from_rows_of_figures():
    for key in lines.METRIC_KEYS:
        assert ROW_TYPES[key] is Figure
