"""Checks and conversions of typed rows: all follow from the fields of a row type."""

from typing import Literal, NamedTuple

import pytest
from tests.ledger.example_runs import worked_run

from ipfl.core import Seat
from ipfl.ledger import database
from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import check_rows, checks_of
from ipfl.ledger.schema import ROW_TABLES
from ipfl.market.market_rows import ROW_TYPES, Bid, Contribution, Figure, Transfer


class Everything(NamedTuple):
    """A field of every type that a row may have."""

    count: int
    amount: int
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


@pytest.mark.parametrize("table", ROW_TABLES)
def test_tables_have_the_fields_of_their_rows(place, table):
    with database.reading(worked_run(place).file) as connection:
        columns = [column[0] for column in connection.execute(f"SELECT * FROM {table}").description]
    assert columns == ["round", "sequence", *ROW_TYPES[table]._fields]


@pytest.mark.parametrize("hint", [list[int], int | str, bytes, tuple[int, ...], int | float | None])
def test_a_type_that_no_column_can_hold(hint):
    class Row(NamedTuple):
        client: int
        other: hint

    with pytest.raises(TypeError, match="there is no column for a field of type"):
        checks_of(Row)


def test_values_become_what_the_database_returns():
    """Rows of their type; whole floats are whole numbers, 0 and 1 are booleans, and zero has no sign."""
    (seat,) = check_rows("seats", [[2.0, 0, "random", 1, 0]])
    assert str(seat) == str(Seat(2, 0, "random", True, False))
    (bid,) = check_rows("bids", [[2, 1.0, 0, -0.0, 1]])
    assert str(bid) == str(Bid(2, 1, 0, 0.0, True))
    assert check_rows("bids", [[2, 1, 0, None, 0]]) == (Bid(2, 1, 0),)
    (contribution,) = check_rows("contributions", [[2, 0, -0.0, 1]])
    assert str(contribution) == str(Contribution(2, 0, 0.0, 1))
    (figure,) = check_rows("best_before", [[0, 1]])
    assert str(figure) == str(Figure(0, 1.0))
    assert check_rows("best_before", [(0, None)]) == (Figure(0, None),)
    assert check_rows("best_before", []) == ()
    assert check_rows("transfers", [["bid", 2, -2, 2**62, 0, 2]]) == (Transfer("bid", 2, -2, 2**62, 0, 2),)


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
