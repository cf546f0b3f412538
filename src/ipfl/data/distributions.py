"""Hidden distributions: what a client's data may secretly differ in (feature, label or class shift)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.data.dataset import Dataset
from ipfl.errors import InputError, unknown

DISTRIBUTIONS: Mapping[str, str] = {
    "rotated": "rotated[:d], d = 2 to 4 (default 2): images turned by 0°, 90°, …",
    "permuted": "permuted[:d] (default 2): the first as it is, in the others every label means another class",
    "halves": "two: the lower and the upper half of the classes; emnist: lower and upper case",
    "groups": "groups[:d] (default 4): the first n/d classes, the next n/d, …",
    "natural": "each writer or person is a client, with partition = natural",
    "iid": "one distribution, nothing hidden",
}
_DEFAULT = {"rotated": 2, "permuted": 2, "groups": 4}


@dataclass(frozen=True, eq=False)
class Distribution:
    """One hidden distribution: which classes it has, and what it does to a point of the pool."""

    classes: tuple[int, ...] | None = None
    """Classes it draws from; None: all."""
    turns: int = 0
    """Quarter turns, counter-clockwise."""
    relabel: NDArray[np.int64] | None = None
    """New label of each class; None: unchanged."""

    def has(self, y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Marks the points of a pool that it can draw."""
        return np.ones(len(y), dtype=np.bool_) if self.classes is None else np.isin(y, self.classes)

    def x(self, x: NDArray[Any]) -> NDArray[Any]:
        """Its view of some points."""
        return np.rot90(x, self.turns, axes=(1, 2)) if self.turns else x

    def y(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """Its labels of some points."""
        return y if self.relabel is None else self.relabel[y]


def kind_of(text: str) -> tuple[str, int]:
    """Splits `rotated:3` into its kind and its number of distributions, with the default filled in."""
    kind, colon, number = text.partition(":")
    if kind not in DISTRIBUTIONS:
        raise unknown("distributions", kind, DISTRIBUTIONS)
    if not colon:
        return kind, _DEFAULT.get(kind, 2 if kind == "halves" else 1)
    if kind not in _DEFAULT:
        raise InputError(f"distributions {kind!r} takes no number, got {text!r}")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise InputError(f"distributions {text[:60]!r}: expected a whole number after the colon")
    return kind, int(number)


def _rotated(count: int, dataset: Dataset) -> list[Distribution]:
    if not 2 <= count <= 4:
        raise InputError(f"rotated:{count}: there are 2 to 4 quarter turns")
    shape = dataset.x_train.shape[1:]
    if len(shape) != 3 or shape[0] != shape[1]:
        raise InputError(f"rotated needs square images, but a point of {dataset.name} has shape {shape}")
    return [Distribution(turns=turns) for turns in range(count)]


def _permuted(count: int, dataset: Dataset, seed: int) -> list[Distribution]:
    """Shifts along one random cycle of all classes: no class keeps its label, in any two of them."""
    if not 2 <= count <= dataset.classes:
        raise InputError(f"permuted:{count}: with {dataset.classes} classes it can be 2 to {dataset.classes}")
    random = stream(seed, "data", "permuted")
    cycle = random.permutation(dataset.classes)
    shifts = random.permutation(np.arange(1, dataset.classes))[: count - 1]
    found = [Distribution()]
    for shift in shifts:
        relabel = np.empty(dataset.classes, dtype=np.int64)
        relabel[cycle] = np.roll(cycle, -shift)
        found.append(Distribution(relabel=relabel))
    return found


def _groups(count: int, dataset: Dataset) -> list[Distribution]:
    if not 2 <= count <= dataset.classes:
        raise InputError(f"groups:{count}: with {dataset.classes} classes it can be 2 to {dataset.classes}")
    parts = np.array_split(np.arange(dataset.classes), count)
    return [Distribution(classes=tuple(part.tolist())) for part in parts]


def _halves(dataset: Dataset) -> list[Distribution]:
    first = dataset.first_half or tuple(range((dataset.classes + 1) // 2))
    second = tuple(label for label in range(dataset.classes) if label not in first)
    return [Distribution(classes=first), Distribution(classes=second)]


def distributions(text: str, dataset: Dataset, seed: int) -> list[Distribution]:
    """The hidden distributions that `text` names, on a data set.

    Args:
        text: A kind of `DISTRIBUTIONS` other than `natural`, with its number if it takes one.
        dataset: Whose points they change.
        seed: For the permutations.

    Raises:
        InputError: When the kind is unknown or does not fit the data set.
    """
    kind, count = kind_of(text)
    if kind == "rotated":
        return _rotated(count, dataset)
    if kind == "permuted":
        return _permuted(count, dataset, seed)
    if kind == "groups":
        return _groups(count, dataset)
    return _halves(dataset) if kind == "halves" else [Distribution()]
