"""Data sets with named columns, such as those of Hugging Face `datasets`, which is not imported.

Taken as one is what has `column_names` and gives a column for its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.data.own.table_encoding import sorted_texts
from ipfl.errors import InputError, near_hint

TARGET_COLUMNS = ("label", "labels", "target", "y", "fine_label")
"""Columns that are taken for the label if none is named."""
TEST_SPLITS = ("test", "validation", "valid")


def has_columns(given: Any) -> bool:
    """True for a data set with named columns, such as `datasets.Dataset`."""
    return isinstance(getattr(given, "column_names", None), Sequence) and hasattr(given, "__getitem__")


def has_splits(given: Any) -> bool:
    """True for several such data sets by name, such as `datasets.DatasetDict`."""
    return isinstance(given, Mapping) and bool(given) and all(has_columns(one) for one in given.values())


def choose_target(given: Any, target: str | None, name: str) -> str:
    """The column with the label: the one named, the only one of classes, or one with a usual name."""
    columns = list[str](given.column_names)
    if target is not None:
        if target not in columns:
            raise _no_column(target, columns, name)
        return target
    features = getattr(given, "features", None) or {}
    found = [one for one in columns if hasattr(features.get(one), "names")]
    found = found if len(found) == 1 else [one for one in TARGET_COLUMNS if one in columns]
    if not found:
        raise InputError(f"{name}: say which column holds the label (target); there are {', '.join(columns)}")
    return found[0]


def read_columns(
    given: Any, target: str | None, features: Sequence[str], name: str, ignored: Sequence[str] = ()
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points and labels of a data set with columns.

    Args:
        given: The data set.
        target: Column with the label; None: see `choose_target`.
        features: Columns to learn from: one with images or vectors, or several with numbers; empty: all
            others.
        name: Of the data in messages.
        ignored: Columns that are no features.
    """
    target = choose_target(given, target, name)
    chosen = list(features) or [one for one in given.column_names if one not in (target, *ignored)]
    for column in chosen:
        if column not in given.column_names:
            raise _no_column(column, given.column_names, name)
    if not chosen:
        raise InputError(f"{name} has no column to learn from")
    parts = [_read_column(given, column, name) for column in chosen]
    if len(parts) == 1 and parts[0].ndim > 1:
        return parts[0], _read_labels(given, target)
    if wide := [column for column, part in zip(chosen, parts, strict=True) if part.ndim > 2]:
        raise InputError(
            f"{name}: {', '.join(chosen)} cannot be put together; name what to learn from (features), such "
            f"as features={[wide[0]]}"
        )
    x = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    return x, _read_labels(given, target)


def class_labels(given: Any, target: str | None, name: str) -> tuple[str, ...] | None:
    """Names of the classes, if the data set says them."""
    feature = (getattr(given, "features", None) or {}).get(choose_target(given, target, name))
    names = getattr(feature, "names", None)
    return None if names is None else tuple(map(str, names))


def _no_column(column: str, columns: Sequence[str], name: str) -> InputError:
    return InputError(
        f"{name} has no column {column!r}{near_hint(column, columns)} (columns: {', '.join(columns)})"
    )


def _read_column(given: Any, column: str, name: str) -> NDArray[Any]:
    """(n, …) of the values of a column; pictures become arrays."""
    values = [np.asarray(value) for value in given[column]]
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise InputError(
            f"{name}: column {column!r} holds {len(shapes)} different shapes, such as "
            f"{' and '.join(map(str, sorted(shapes)[:2]))}; all points must have the same"
        )
    array = np.stack(values) if values else np.zeros((0, 1))
    if array.dtype.kind not in "buif":
        raise InputError(
            f"{name}: column {column!r} does not hold numbers or pictures; make numbers of it, or name the "
            "columns to learn from (features)"
        )
    return array


def _read_labels(given: Any, target: str) -> NDArray[Any]:
    return np.array(list(given[target]))


def group_rows(given: Any, client: str, name: str) -> Iterator[tuple[str, Any]]:
    """The rows of each client, by the column that names it."""
    if client not in given.column_names:
        raise _no_column(client, given.column_names, name)
    owners = np.array([str(value) for value in given[client]])
    for owner in sorted_texts(set(owners.tolist())):
        yield owner, given.select(np.flatnonzero(owners == owner))


def clients_of(
    given: Any, client: str | None, target: str | None, features: Sequence[str]
) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """Clients of a data set with columns, and the names of the classes.

    Args:
        given: A data set, or its splits by name: the test rows of a client are then its test data.
        client: Column that names the client.
        target: Column with the label.
        features: Columns to learn from.
    """
    splits = dict(given) if has_splits(given) else {"train": given}
    if not has_columns(splits.get("train")):
        raise InputError(
            f"expected a data set with columns, or splits with train, not {type(given).__name__}"
        )
    if client is None:
        raise InputError(
            "say which column names the client (client=…), or divide the rows, such as with a partitioner of "
            "flwr-datasets, and take Task.from_clients"
        )
    clients: dict[str, Any] = {}
    test = next((splits[name] for name in TEST_SPLITS if name in splits), None)
    for key, rows in (("train", splits["train"]), ("test", test)):
        for owner, own in group_rows(rows, client, key) if rows is not None else ():
            if key == "train" or owner in clients:
                read = read_columns(own, target, features, f"client {owner}", [client])
                clients.setdefault(owner, {})[key] = read
    return clients, class_labels(splits["train"], target, "the data set")
