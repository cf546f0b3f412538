"""The data set that needs no file: the digits that come with scikit-learn."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipfl.data.dataset import Dataset, choose_test_points, divide_points
from ipfl.errors import InputError


def read_digits() -> Dataset:
    """The digits that come with scikit-learn, with a fixed split."""
    x, y = _digits()
    is_test = choose_test_points(y, 297 / len(y), "digits")
    return divide_points("digits", x, y, None, is_test, classes=10)


@cache
def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels from scikit-learn's file, as its `load_digits` reads it.

    To import that function takes as long as to import torch. The file is text, and read once.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise InputError("the data set digits is part of scikit-learn, which is not installed")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    x = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return x, table[:, -1].astype(np.int64)
