"""From a table with a row per point (a DataFrame) to a data set whose groups are the clients.

`table_files` reads tables from files, `table_encoding` makes points of rows. A share of each client's rows
becomes test data; all that is computed from rows, such as means, is computed from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TaskConfig
from ipfl.data.dataset import TEST_SHARE, Dataset, choose_test_points, divide_points
from ipfl.data.own.table_encoding import (
    TableEncoding,
    category_texts,
    choose_column,
    find_column,
    make_encoding,
    number_texts,
    refuse_missing,
)
from ipfl.data.target_kinds import check_number_targets
from ipfl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MAX_TABLE_CLASSES = 1000
MAX_COLUMNS = 10_000


def read_table(rows: pd.DataFrame, settings: TaskConfig, name: str) -> Dataset:
    """Makes a data set of a table.

    Args:
        rows: A row per point.
        settings: Which columns hold what, and how numbers are standardised.
        name: Name of the table, in messages and reports.

    Raises:
        InputError: A column is missing, unknown or holds what cannot be learned from.
    """
    if settings.target is None:
        raise InputError(f"{name}: say which column holds the label (target)")
    if not len(rows):
        raise InputError(f"{name} has no rows")
    refuse_too_wide(len(rows.columns), name)
    y, classes = _read_target(rows, settings, settings.target, name)
    group, clients = None, list[str]()
    if settings.client is not None:
        group, clients = _number_texts(rows, settings.client, name, "client")
    elif settings.partition == "natural":
        raise InputError(
            f"{name}: say which column holds the client of a row (client), or have the rows dealt out "
            '(partition = "dirichlet:0.5")'
        )
    elif settings.standardize == "client":
        raise InputError(f'{name}: standardize = "client" needs the column of the client (client)')
    strata = y if classes else np.zeros(len(y), np.int64)
    is_test = choose_test_points(strata if group is None else group, TEST_SHARE, "table")
    raw, encoding = _encode(rows, settings, name, group, clients, is_test)
    x = encoding.standardized(raw, group if settings.standardize == "client" else None)
    return divide_points(
        name,
        x,
        y,
        group,
        is_test,
        classes=len(classes) or 1,
        group_names=None if group is None else tuple(clients),
        class_names=tuple(classes) or None,
        encoding=encoding,
        target=settings.predict,
    )


def refuse_too_wide(columns: int, name: str) -> None:
    """Refuses a table with too many columns, as soon as their number is known."""
    if columns > MAX_COLUMNS:
        raise InputError(f"{name} has {columns} columns or more, at most {MAX_COLUMNS} are read")


def _read_target(
    rows: pd.DataFrame, settings: TaskConfig, target: str, name: str
) -> tuple[NDArray[Any], list[str]]:
    """The target of each row, and the classes; none for numbers."""
    if settings.predict == "classes":
        y, classes = _number_texts(rows, target, name, "target", settings.class_names)
        _check_classes(rows, classes, target, name)
        return y, classes
    if settings.predict == "multilabel":
        raise InputError(f'{name}: predict = "multilabel" is for arrays, not for one column of a table')
    values = find_column(rows, target, name, "target")
    refuse_missing(values, target, name)
    if values.dtype.kind not in "buif":
        raise InputError(f'{name}: column {target!r} (target) holds text, but predict = "regression"')
    return check_number_targets(values.to_numpy(np.float64), len(rows), "regression", f"{name}: {target}"), []


def _number_texts(
    rows: pd.DataFrame, column: str, name: str, key: str, known: Sequence[str] = ()
) -> tuple[NDArray[np.int64], list[str]]:
    """Number of each row's value in a column, and the values in their order."""
    values = find_column(rows, column, name, key)
    refuse_missing(values, column, name)
    texts = category_texts(values)
    if not all(text.strip() for text in texts):
        raise InputError(f"{name}: column {column!r} ({key}) is empty in some rows")
    return number_texts(texts, known, f"{name}: column {column!r} ({key})")


def _check_classes(rows: pd.DataFrame, classes: list[str], target: str, name: str) -> None:
    """Refuses a target with nothing to tell apart, or with measurements instead of classes."""
    if len(classes) == 1:
        raise InputError(f"{name}: column {target!r} (target) holds only {classes[0]!r}: nothing to learn")
    values = find_column(rows, target, name)
    is_measured = values.dtype.kind == "f" and bool((values % 1 != 0).any())
    if is_measured or len(classes) > MAX_TABLE_CLASSES:
        raise InputError(
            f"{name}: column {target!r} (target) holds {len(classes)} values, such as {classes[0]}; "
            'expected the names or numbers of classes (numbers to predict: predict = "regression")'
        )


def _encode(
    rows: pd.DataFrame,
    settings: TaskConfig,
    name: str,
    group: NDArray[np.int64] | None,
    clients: list[str],
    is_test: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], TableEncoding]:
    """Raw points of all rows, and the encoding that the training rows give."""
    taken = {settings.target, settings.client}
    chosen: tuple[Any, ...] = settings.features or tuple(str(one) for one in rows if str(one) not in taken)
    if not chosen:
        raise InputError(f"{name} has no column to learn from, only client and target")
    if both := taken & set(chosen):
        raise InputError(f"{name}: {both.pop()!r} is the client or the target: it cannot be one of features")
    for column in settings.categorical:
        find_column(rows, column, name, "categorical")
    columns = [
        choose_column(find_column(rows, one, name, "features"), one, name, one in settings.categorical)
        for one in chosen
    ]
    unscaled = make_encoding(
        columns, np.zeros((1, sum(len(c.point_names) for c in columns))), "none", None, ()
    )
    raw = unscaled.raw_points(rows, name)
    train_group = None if group is None else group[~is_test]
    return raw, make_encoding(columns, raw[~is_test], settings.standardize, train_group, clients)
