"""Hidden distributions: how the data of some clients differs from that of others, without anyone being told.

They differ in their images (rotated), in the meaning of their labels (permuted) or in their classes
(halves, groups).
"""

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
"""Explanation of each kind, for `ipfl partitions`."""
_DEFAULT_COUNTS = {"rotated": 2, "permuted": 2, "groups": 4}
_FIXED_COUNTS = {"halves": 2, "natural": 1, "iid": 1}


@dataclass(frozen=True, eq=False)
class Distribution:
    """One hidden distribution: which classes it has, and how it changes a point of the pool."""

    classes: tuple[int, ...] | None = None
    """Its classes; None: all."""
    quarter_turns: int = 0
    """By how much images are rotated, counter-clockwise."""
    new_labels: NDArray[np.int64] | None = None
    """New label of each class; None: unchanged."""

    @property
    def has_changes(self) -> bool:
        """True if its points differ from the same points in the pool."""
        return self.quarter_turns != 0 or self.new_labels is not None

    def contains(self, y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each label of a pool, whether its class belongs to the distribution."""
        return np.ones(len(y), dtype=np.bool_) if self.classes is None else np.isin(y, self.classes)

    def change_features(self, x: NDArray[Any]) -> NDArray[Any]:
        """The points as this distribution has them."""
        return np.rot90(x, self.quarter_turns, axes=(1, 2)) if self.quarter_turns else x

    def change_labels(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels as this distribution has them."""
        return y if self.new_labels is None else self.new_labels[y]


def parse_distributions(text: str) -> tuple[str, int]:
    """Splits `rotated:3` into the kind and the number of distributions; without a number, the default.

    Raises:
        InputError: The kind is unknown, or the number is wrong.
    """
    kind, colon, number = text.partition(":")
    if kind not in DISTRIBUTIONS:
        raise unknown("distributions", kind, DISTRIBUTIONS)
    if not colon:
        return kind, {**_DEFAULT_COUNTS, **_FIXED_COUNTS}[kind]
    if kind not in _DEFAULT_COUNTS:
        raise InputError(f"distributions {kind!r} takes no number, got {text!r}")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise InputError(f"distributions {text[:60]!r}: expected a whole number after the colon")
    return kind, int(number)


def make_distributions(text: str, dataset: Dataset, seed: int) -> list[Distribution]:
    """Makes the hidden distributions that `text` names.

    Args:
        text: A kind of `DISTRIBUTIONS` other than `natural`, with its number if it takes one.
        dataset: The data set whose points they change.
        seed: Draws the permutations.

    Raises:
        InputError: The kind is unknown or does not fit the data set.
    """
    kind, count = parse_distributions(text)
    if kind == "rotated":
        return _rotated(count, dataset)
    if kind == "permuted":
        return _permuted(count, dataset, seed)
    if kind == "groups":
        return _groups(count, dataset)
    return _halves(dataset) if kind == "halves" else [Distribution()]


def _rotated(count: int, dataset: Dataset) -> list[Distribution]:
    if not 2 <= count <= 4:
        raise InputError(f"rotated:{count}: there are 2 to 4 quarter turns")
    shape = dataset.x_train.shape[1:]
    if len(shape) != 3 or shape[0] != shape[1]:
        raise InputError(f"rotated needs square images, but a point of {dataset.name} has shape {shape}")
    return [Distribution(quarter_turns=turns) for turns in range(count)]


def _permuted(count: int, dataset: Dataset, seed: int) -> list[Distribution]:
    """Shifts along one random cycle of all classes: in any two of them, every class has different labels."""
    if not 2 <= count <= dataset.classes:
        raise InputError(f"permuted:{count}: with {dataset.classes} classes it can be 2 to {dataset.classes}")
    random = stream(seed, "data", "permuted")
    cycle = random.permutation(dataset.classes)
    shifts = random.permutation(np.arange(1, dataset.classes))[: count - 1]
    made = [Distribution()]
    for shift in shifts:
        new_labels = np.empty(dataset.classes, dtype=np.int64)
        new_labels[cycle] = np.roll(cycle, -shift)
        made.append(Distribution(new_labels=new_labels))
    return made


def _groups(count: int, dataset: Dataset) -> list[Distribution]:
    if not 2 <= count <= dataset.classes:
        raise InputError(f"groups:{count}: with {dataset.classes} classes it can be 2 to {dataset.classes}")
    groups = np.array_split(np.arange(dataset.classes), count)
    return [Distribution(classes=tuple(group.tolist())) for group in groups]


def _halves(dataset: Dataset) -> list[Distribution]:
    first = dataset.first_half or tuple(range((dataset.classes + 1) // 2))
    second = tuple(label for label in range(dataset.classes) if label not in first)
    return [Distribution(classes=first), Distribution(classes=second)]
