"""A labelled data set in memory: two disjoint pools of points, training and test, with optional groups.

Images are uint8 or float32 (n, height, width, channels), sequences float32 (n, steps, features), tables
(n, features): float32, or whole numbers as they are, which may be token ids. Networks convert them batch by
batch. The group of a point is the writer or person that it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ipfl.config.task_section import TargetKind
from ipfl.core import stream
from ipfl.data.partitions import largest_remainder
from ipfl.data.target_kinds import Target, check_number_targets, count_outputs
from ipfl.errors import InputError

if TYPE_CHECKING:
    from ipfl.data.own.table_encoding import TableEncoding

DATASET_SEED = 0
"""Random choices that are part of a data set, not of a run, use this seed: they are the same in every run."""
TEST_SHARE = 0.2
"""Share of the points that become test points where a data set has no official split."""
MAX_UNCHECKED_CLASSES = 1000
"""A data set may have more classes than this only if it has at least as many labels."""


def check_features(x: ArrayLike, name: str) -> NDArray[Any]:
    """Checks points and converts them to their form in memory.

    uint8 stays, and so do tables of whole numbers, as int64: an embedding needs token ids as they are. All
    else becomes float32.

    Args:
        x: (n, features), images (n, height, width, channels), grey images (n, height, width), which are uint8
            or square, or sequences (n, steps, features), which are neither. Images with their channels first,
            as PyTorch has them, are recognised.
        name: Name of the array in error messages.

    Raises:
        InputError: The shape is another one, or a value is not a finite number.
    """
    points = np.asarray(x)
    if points.dtype.kind not in "buif":
        raise InputError(f"{name} holds {points.dtype}, expected numbers")
    if points.ndim == 3 and (points.dtype == np.uint8 or points.shape[1] == points.shape[2]):
        points = points[..., np.newaxis]
    points = channels_last(points)
    if points.ndim not in (2, 3, 4) or 0 in points.shape:
        raise InputError(
            f"{name} has shape {points.shape}, expected (n, features), (n, steps, features), "
            "(n, height, width) or (n, height, width, channels), none of them 0"
        )
    if points.dtype == np.uint8:
        return points
    if points.ndim == 2 and points.dtype.kind in "ui" and points.max() <= np.iinfo(np.int64).max:
        return points.astype(np.int64, copy=False)
    with np.errstate(over="ignore"):
        points = points.astype(np.float32, copy=False)
    if not np.isfinite(points).all():
        raise InputError(f"{name} holds values that are not finite (NaN or infinity)")
    return points


def channels_last(points: NDArray[Any]) -> NDArray[Any]:
    """Images as (n, height, width, channels): those that clearly have their channels first are turned.

    Up to 4 lines of more than 4 × 4 channels would be no image, so (n, 3, 32, 32) can mean only one thing.
    """
    if points.ndim == 4 and points.shape[1] in (1, 2, 3, 4) and min(points.shape[2:]) > 4:
        return np.ascontiguousarray(points.transpose(0, 2, 3, 1))
    return points


def check_one_each(labels: NDArray[Any], points: int, name: str) -> None:
    """Accepts one label per point, whatever it is.

    Raises:
        InputError: There are more or fewer.
    """
    if labels.shape != (points,):
        hint = '; several per point: predict = "multilabel"' if labels.shape[:1] == (points,) else ""
        raise InputError(
            f"{name} has shape {labels.shape}, expected one label for each of {points} points{hint}"
        )


def check_labels(y: ArrayLike, points: int, name: str) -> NDArray[np.int64]:
    """Checks class labels (or group numbers): whole numbers from 0 on, one per point.

    Raises:
        InputError: The labels are something else.
    """
    labels = np.asarray(y)
    check_one_each(labels, points, name)
    if labels.dtype.kind not in "ui":
        hint = '; for numbers: predict = "regression"' if labels.dtype.kind == "f" else ""
        raise InputError(f"{name} holds {labels.dtype}, expected whole numbers{hint}")
    if labels.min() < 0 or labels.max() > np.iinfo(np.int64).max:  # a larger uint64 would become negative
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(f"{name} holds the label {wrong}, expected labels from 0 on")
    return labels.astype(np.int64)


def count_classes(y: NDArray[Any], name: object) -> int:
    """Number of classes where it is not given: the highest label plus one.

    Args:
        y: Labels.
        name: Name of the data in error messages.

    Raises:
        InputError: There are no labels, or one is so high that the model, which has an output for each
            class, would be huge because of classes that do not exist.
    """
    if y.dtype.kind not in "ui" or not y.size:
        hint = '; for numbers: predict = "regression"' if y.dtype.kind == "f" else ""
        raise InputError(f"{name}: labels are {y.size} values of {y.dtype}, expected whole numbers{hint}")
    count = int(y.max()) + 1
    if count > max(MAX_UNCHECKED_CLASSES, y.size):
        raise InputError(f"{name}: label {count - 1} of {y.size} labels; classes are numbered from 0 on")
    return count


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test pool; checked and converted when made.

    Raises:
        InputError: The arrays do not fit each other, or hold something else than finite numbers.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    classes: int
    first_half: tuple[int, ...] | None = None
    """Classes of the first distribution of `halves`; None: the lower half of the labels."""
    group_train: NDArray[np.int64] | None = None
    """Group (writer, person) of each training point."""
    group_test: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] | None = None
    """Name of group g at position g; None: they have none."""
    class_names: tuple[str, ...] | None = None
    """Name of class c at position c; None: they have none."""
    encoding: TableEncoding | None = None
    """The way from rows of a table to these points; None: they are no table."""
    target: TargetKind = "classes"
    """The kind of `y`; `classes` is then the number of classes, of labels, or of numbers to predict."""

    def __post_init__(self) -> None:
        for pool in ("train", "test"):
            self._check_pool(pool)
        if self.x_train.shape[1:] != self.x_test.shape[1:] or self.x_train.dtype != self.x_test.dtype:
            raise InputError(
                f"{self.name}: x_train is {self.x_train.shape[1:]} {self.x_train.dtype}, "
                f"x_test is {self.x_test.shape[1:]} {self.x_test.dtype}"
            )
        if self.target == "classes" and self.classes < 2:
            raise InputError(f"{self.name}: the number of classes is {self.classes}, expected at least 2")
        if (self.group_train is None) != (self.group_test is None):
            raise InputError(f"{self.name}: groups are needed for both the training and the test points")
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise InputError(f"{self.name}: {len(self.class_names)} class_names for {self.classes} classes")
        named, group = self.group_names, self.group_train
        if named is not None and (group is None or len(named) <= group.max()):
            raise InputError(f"{self.name}: group_names must name every group")

    @property
    def predicted(self) -> Target:
        """The target; the units of numbers are those of the training points."""
        return Target.of_training(self.target, self.classes, self.y_train)

    @property
    def tokens(self) -> int | None:
        """The highest value plus one of points that are whole numbers from 0 on; None for all others."""
        pools = self.x_train, self.x_test
        if self.x_train.ndim != 2 or self.x_train.dtype.kind not in "ui":
            return None
        return None if min(x.min() for x in pools) < 0 else int(max(x.max() for x in pools)) + 1

    def _check_targets(self, y: NDArray[Any], points: int, name: str) -> NDArray[Any]:
        checked = check_targets(y, points, self.target, name)
        if self.target == "classes" and checked.max() >= self.classes:
            raise InputError(f"{name} holds the label {checked.max()}, but classes = {self.classes}")
        if self.target != "classes" and count_outputs(checked) != self.classes:
            raise InputError(
                f"{name} holds {count_outputs(checked)} values per point, but classes = {self.classes}"
            )
        return checked

    def _check_pool(self, pool: str) -> None:
        x = check_features(getattr(self, f"x_{pool}"), f"{self.name}: x_{pool}")
        y = self._check_targets(getattr(self, f"y_{pool}"), len(x), f"{self.name}: y_{pool}")
        object.__setattr__(self, f"x_{pool}", x)
        object.__setattr__(self, f"y_{pool}", y)
        group = getattr(self, f"group_{pool}")
        if group is not None:
            object.__setattr__(
                self, f"group_{pool}", check_labels(group, len(x), f"{self.name}: group_{pool}")
            )


def check_targets(y: ArrayLike, points: int, kind: TargetKind, name: str) -> NDArray[Any]:
    """Checks targets of any kind: class labels, 0 and 1 per label, or numbers.

    Raises:
        InputError: They are something else.
    """
    return check_labels(y, points, name) if kind == "classes" else check_number_targets(y, points, kind, name)


def count_targets(y: NDArray[Any], kind: TargetKind, name: object) -> int:
    """Outputs that a model needs: a number for each class, each label, or each number to predict.

    Raises:
        InputError: The labels of classes are no such labels.
    """
    return count_classes(y, name) if kind == "classes" else count_outputs(y)


def choose_test_points(strata: NDArray[Any], share: float, name: str) -> NDArray[np.bool_]:
    """Chooses the test points of a data set without an official split: the same ones in every run.

    Args:
        strata: Class or group of each point; each gives its share, exact to one point.
        share: Share of all points.
        name: Name of the data set; each has its own random stream.

    Returns:
        For each point, whether it is a test point.
    """
    values, inverse = np.unique(strata, return_inverse=True)
    counts = largest_remainder([round(share * len(strata))], [np.bincount(inverse)])[0]
    shuffled = stream(DATASET_SEED, "split", name).permutation(len(strata))
    by_stratum = shuffled[np.argsort(inverse[shuffled], kind="stable")]
    starts = np.searchsorted(inverse[by_stratum], np.arange(len(values)))
    is_test = np.zeros(len(strata), dtype=np.bool_)
    for start, count in zip(starts, counts, strict=True):
        is_test[by_stratum[start : start + count]] = True
    return is_test


def split_dataset(
    name: str, x: NDArray[Any], y: NDArray[Any], group: NDArray[Any] | None, **fields: Any
) -> Dataset:
    """A data set of points without an official split: `TEST_SHARE` of each group, or class, is test.

    Args:
        name: Of the data set.
        x: Points.
        y: Their targets.
        group: Group of each point; None: there are none.
        **fields: The other fields of `Dataset`.
    """
    target = fields.get("target", "classes")
    if len({array.shape[:1] for array in (x, y, group) if array is not None}) > 1:
        raise InputError(f"{name}: points, labels and groups differ in length")
    if not y.ndim or not len(y) or (target == "classes" and y.ndim != 1):
        raise InputError(f"{name}: labels have shape {y.shape}, expected one for each point")
    strata = y if target == "classes" else np.zeros(len(y), dtype=np.int64)
    is_test = choose_test_points(strata if group is None else group, TEST_SHARE, name)
    return divide_points(name, x, y, group, is_test, **fields)


def divide_points(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    group: NDArray[Any] | None,
    is_test: NDArray[np.bool_],
    **fields: Any,
) -> Dataset:
    """A data set of points of which some are test points; `fields` are the other fields of `Dataset`."""
    return Dataset(
        name=name,
        x_train=x[~is_test],
        y_train=y[~is_test],
        x_test=x[is_test],
        y_test=y[is_test],
        group_train=None if group is None else group[~is_test],
        group_test=None if group is None else group[is_test],
        **fields,
    )
