"""From rows of a table to points: categories to columns of 0 and 1, numbers to mean 0 and spread 1.

Made from the training rows, and then the same for all rows: those of the test, and new ones
(`TableEncoding.points`). What leaves a client for it, where clients and server are machines of their own:

- Categories and classes: which values a column has, as a set; the server makes one list of all.
- `standardize = "server"`: per column of numbers the count, the sum and the sum of squares of its rows.
- `standardize = "client"`, or `"none"`: nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ipfl.errors import InputError, near_hint

if TYPE_CHECKING:
    import pandas as pd

Standardize = Literal["server", "client", "none"]
MAX_CATEGORIES = 100
"""Different texts in a column; one with more is a name or a number of the row, not a category."""
MAX_LISTED_COLUMNS = 12
"""Names of columns in a message."""


@dataclass(frozen=True)
class TableColumn:
    """One column to learn from."""

    name: str
    categories: tuple[str, ...] | None = None
    """Its values, each a column of 0 and 1; None: it holds numbers."""

    @property
    def point_names(self) -> list[str]:
        """Names of its entries in a point: `age`, or `colour=red` and so on."""
        return [self.name] if self.categories is None else [f"{self.name}={one}" for one in self.categories]


@dataclass(frozen=True, eq=False)
class TableEncoding:
    """Makes points of rows."""

    columns: tuple[TableColumn, ...]
    standardize: Standardize
    clients: tuple[str, ...]
    """Whose mean and spread each row of `mean` and `spread` is; empty: one row, for all."""
    mean: NDArray[np.float64]
    """(1 or clients, columns of numbers)"""
    spread: NDArray[np.float64]

    @property
    def point_names(self) -> list[str]:
        """Name of each entry of a point."""
        return [name for column in self.columns for name in column.point_names]

    def points(self, rows: pd.DataFrame, client: str | None = None) -> NDArray[np.float32]:
        """Points of new rows: what the models take.

        Args:
            rows: Has the columns of the table; others are ignored.
            client: Whose rows they are; needed with `standardize = "client"`.

        Raises:
            InputError: A column, a value or the client is missing or unknown.
        """
        group = None
        if self.standardize == "client":
            if client not in self.clients:
                raise InputError(
                    f"each client has its own mean and spread, but client = {client!r} is none of them"
                )
            group = np.full(len(rows), self.clients.index(client))
        return self.standardized(self.raw_points(rows, "rows"), group)

    def raw_points(self, rows: pd.DataFrame, where: str) -> NDArray[np.float64]:
        """Points before their numbers are standardised.

        Args:
            rows: A table.
            where: Its name in messages.
        """
        parts = []
        for column in self.columns:
            values = find_column(rows, column.name, where)
            refuse_missing(values, column.name, where)
            if column.categories is None:
                parts.append(_numbers(values, column.name, where)[:, None])
            else:
                parts.append(_is_each(category_texts(values), column, where))
        return np.concatenate(parts, axis=1)

    def standardized(self, raw: NDArray[np.float64], group: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """Raw points with their numbers at mean 0 and spread 1.

        Args:
            raw: From `raw_points`.
            group: Position in `clients` of each point; None: the same mean and spread for all.
        """
        x = raw.copy()
        row = np.zeros(len(raw), np.int64) if group is None else group
        x[:, self._is_number] = (raw[:, self._is_number] - self.mean[row]) / self.spread[row]
        with np.errstate(over="ignore"):  # `Dataset` refuses what is too large
            return x.astype(np.float32)

    @property
    def _is_number(self) -> NDArray[np.bool_]:
        return np.array([one.categories is None for one in self.columns for _ in one.point_names])


def make_encoding(
    columns: Sequence[TableColumn],
    raw: NDArray[np.float64],
    standardize: Standardize,
    group: NDArray[np.int64] | None,
    clients: Sequence[str],
) -> TableEncoding:
    """The encoding of a table, from its training rows.

    Args:
        columns: What to learn from.
        raw: Raw points of the training rows.
        standardize: By whose mean and spread.
        group: Position in `clients` of each row; None: it is not known.
        clients: Names of the clients.
    """
    is_number = np.array([one.categories is None for one in columns for _ in one.point_names])
    numbers = raw[:, is_number]
    if standardize == "none":
        mean, spread = np.zeros((1, numbers.shape[1])), np.ones((1, numbers.shape[1]))
    else:
        if group is None or standardize == "server":
            group, members = np.zeros(len(raw), np.int64), 1
        else:
            members = len(clients)
        mean, spread = _mean_and_spread(numbers, group, members)
    named = tuple(clients) if standardize == "client" else ()
    return TableEncoding(tuple(columns), standardize, named, mean, spread)


def _mean_and_spread(
    numbers: NDArray[np.float64], group: NDArray[np.int64], groups: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and spread of each group's rows; a spread of 0 becomes 1, and so does that of no rows."""
    count = np.maximum(np.bincount(group, minlength=groups), 1)[:, None]
    mean, square = np.zeros((2, groups, numbers.shape[1]))
    np.add.at(mean, group, numbers)
    mean /= count
    np.add.at(square, group, (numbers - mean[group]) ** 2)
    spread = np.sqrt(square / count)
    return mean, np.where(spread > 0, spread, 1.0)


def find_column(rows: pd.DataFrame, name: str, where: str, key: str = "") -> pd.Series[Any]:
    """A column by its name.

    Raises:
        InputError: It is not there, or there twice; the nearest one is named.
    """
    if rows.columns.is_unique and rows.columns.inferred_type == "string" and name in rows.columns:
        return rows[name]  # at once, where a walk over the names for each of them takes minutes
    names = [str(column) for column in rows.columns]
    setting = f" ({key})" if key else ""
    if name not in names:
        known = ", ".join(names[:MAX_LISTED_COLUMNS]) + (", …" if len(names) > MAX_LISTED_COLUMNS else "")
        raise InputError(
            f"{where} has no column {name!r}{setting}{near_hint(name, names)} (columns: {known})"
        )
    if names.count(name) > 1:
        raise InputError(f"{where} has the column {name!r}{setting} {names.count(name)} times")
    return rows.iloc[:, names.index(name)]


def refuse_missing(values: pd.Series[Any], name: str, where: str) -> None:
    """Refuses a column with missing values."""
    is_missing = values.isna().to_numpy()
    if is_missing.any():
        raise InputError(
            f"{where}: column {name!r} has no value in {is_missing.sum()} of {len(is_missing)} rows, first "
            f"in row {int(np.argmax(is_missing)) + 1}: fill them in, or leave out the rows or the column"
        )


def category_texts(values: pd.Series[Any] | NDArray[Any]) -> list[str]:
    """Values as texts; whole numbers without a decimal point, however they are stored."""
    return [
        str(int(one)) if isinstance(one, float) and one.is_integer() else str(one) for one in values.tolist()
    ]


def choose_column(values: pd.Series[Any], name: str, where: str, is_categorical: bool) -> TableColumn:
    """The encoding of a column, by its values.

    Raises:
        InputError: It holds dates, or too many different texts.
    """
    refuse_missing(values, name, where)
    if not is_categorical and values.dtype.kind in "buif":
        return TableColumn(name)
    if values.dtype.kind in "mM":
        raise InputError(
            f"{where}: column {name!r} holds dates: make numbers of them, or leave the column out (features)"
        )
    found = sorted_texts(set(category_texts(values)))
    if len(found) > MAX_CATEGORIES:
        raise InputError(
            f"{where}: column {name!r} holds {len(found)} different texts, such as {found[0]!r}; at most "
            f"{MAX_CATEGORIES} can be categories: leave the column out (features), or make numbers of it"
        )
    return TableColumn(name, tuple(found))


def sorted_texts(texts: set[str]) -> list[str]:
    """Whole numbers by their size, anything else by the alphabet."""
    if all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        return sorted(texts, key=lambda text: (int(text), text))
    return sorted(texts)


def number_texts(
    texts: Sequence[str], known: Sequence[str], where: str
) -> tuple[NDArray[np.int64], list[str]]:
    """The number of each text, and the texts in their order.

    Args:
        texts: Such as the label of each row.
        known: All that there can be, in their order; empty: those that occur, sorted.
        where: Of the data in messages.

    Raises:
        InputError: A text is none of those known.
    """
    found = list(known) or sorted_texts(set(texts))
    positions = {text: position for position, text in enumerate(found)}
    if others := sorted_texts(set(texts) - set(positions)):
        raise InputError(f"{where}: {others[0]!r} is none of task.class_names ({', '.join(found)})")
    return np.array([positions[text] for text in texts], dtype=np.int64), found


def number_together(pools: Sequence[NDArray[Any]]) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """The values of some pools as numbers, the same value with the same number in all; and their names."""
    if any(pool.ndim != 1 for pool in pools):
        raise ValueError("expected one label, and one client, for each point")
    numbers, names = number_texts(category_texts(np.concatenate(pools)), (), "")
    return np.split(numbers, np.cumsum([len(pool) for pool in pools])[:-1]), tuple(names)


def _numbers(values: pd.Series[Any], name: str, where: str) -> NDArray[np.float64]:
    try:
        numbers: NDArray[np.float64] = values.to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}: column {name!r} should hold numbers ({' '.join(str(error).split())})"
        ) from error
    if not np.isfinite(numbers).all():
        raise InputError(f"{where}: column {name!r} holds infinite values")
    return numbers


def _is_each(texts: Sequence[str], column: TableColumn, where: str) -> NDArray[np.float64]:
    """(rows, categories): 1 where a row has the category."""
    assert column.categories is not None
    positions = {category: position for position, category in enumerate(column.categories)}
    if unknown := sorted(set(texts) - set(positions)):
        raise InputError(
            f"{where}: column {column.name!r} holds {unknown[0]!r}, which is no category of the table "
            f"that was learned from{near_hint(unknown[0], column.categories)}"
        )
    return np.eye(len(positions))[[positions[text] for text in texts]]
