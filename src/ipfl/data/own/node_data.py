"""The data of one client on a machine of its own: `.npz`, CSV, Parquet, or a folder of images.

A node sees its own points only. What all nodes must have in common cannot be taken from them: the order of
the classes is said by the run's config (`task.class_names`) or by labels that are whole numbers, and columns
of text, whose values every node would number differently, are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TABLE_DATASETS, TaskConfig, dataset_of
from ipfl.data.catalogue import load_dataset
from ipfl.data.dataset import Dataset
from ipfl.data.own.archives import read_points
from ipfl.errors import InputError

NodeParts = dict[str, tuple[NDArray[Any], NDArray[Any]]]
"""Points and labels by part: `train`, and `test` if there are test points."""


def check_points_apart(path: Path, settings: TaskConfig) -> None:
    """Accepts settings under which no point changes another one, as noise that is to hide each one needs.

    Raises:
        InputError: Columns are standardised by the mean and spread of all rows.
    """
    if dataset_of(path) in TABLE_DATASETS and settings.standardize != "none":
        raise InputError('[privacy] needs task.standardize = "none": one row would change all others')


def read_node_data(path: Path, settings: TaskConfig) -> NodeParts:
    """A node's own points.

    Args:
        path: Its file or folder; the name says what it is.
        settings: Of the run: which columns hold what, the classes, the size of images.

    Raises:
        InputError: It cannot be read, or other nodes could not have the same classes or columns.
    """
    kind = dataset_of(path)
    if kind == "npz":
        points = read_points(path)
        parts = {"train": (points["x"], points["y"])}
        if "x_test" in points and "y_test" in points:
            parts["test"] = (points["x_test"], points["y_test"])
        return parts
    # Nobody but this client has rows here, so that its own mean and spread are those of all of them.
    scaled_by = "none" if settings.standardize == "none" else "server"
    change = {"dataset": kind, "client": None, "partition": "iid", "standardize": scaled_by}
    found = load_dataset(kind, path=path, settings=settings.model_copy(update=change))
    _refuse_text(found)
    numbers = _class_numbers(found, settings)
    return {
        "train": (found.x_train, numbers[found.y_train]),
        "test": (found.x_test, numbers[found.y_test]),
    }


def _refuse_text(found: Dataset) -> None:
    columns = () if found.encoding is None else found.encoding.columns
    if named := [column.name for column in columns if column.categories is not None]:
        raise InputError(
            f"{found.name}: column {named[0]!r} names categories, which every node would number in its own "
            "way: make numbers of it, or leave it out (task.features)"
        )


def _class_numbers(found: Dataset, settings: TaskConfig) -> NDArray[np.int64]:
    """The number in the federation of every class that occurs here."""
    names = found.class_names or ()
    if settings.class_names:
        return np.arange(len(names))
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        raise InputError(
            f"{found.name}: the classes {', '.join(names[:3])} … have no numbers that all nodes agree on: "
            "list all classes in the run's config (task.class_names)"
        )
    return np.array([int(name) for name in names])
