"""Readers of data sets: one function for each published format, and for `.npz` files.

The others read CIFAR's binary files, EMNIST's idx files, UCI's HAPT text files (HAR) and `.npz`. A published
archive has been checked by its checksum. An `.npz` file is anybody's: what is damaged or not in its format
raises an InputError of one line.

Why not torchvision or `datasets`: CIFAR's and EMNIST's readers, about 40 lines, are all that they could
replace. torchvision has no CPU build for the pinned torch (0.29.2 wants 2.14). `datasets` brings 270 MB,
mostly pyarrow and pandas, and reads from its own hub. For users' own data it is the other way round: pandas
and Pillow read it, as extras.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TargetKind, TaskConfig
from ipfl.data.catalogue import EMNIST_CLASSES, EMNIST_LOWER_CASE, HAR_ACTIVITIES
from ipfl.data.dataset import Dataset, count_classes, count_targets, divide_points, split_dataset
from ipfl.data.own.archives import read_arrays, refuse_damaged
from ipfl.data.own.table_encoding import number_together
from ipfl.errors import InputError

_WINDOW_LENGTH = 128
"""Readings per window: 2.56 seconds."""
_WINDOW_STEP = 64
"""Windows overlap by half."""
_KEPT_FREQUENCIES = 16
"""The lowest frequencies, 0.4 to 6.25 Hz: human movement is slower than that."""

_GROUP_KEYS = ("client", "writer", "subject")
"""Names under which an `.npz` file may hold the group of each point."""


def read_cifar10(path: Path) -> Dataset:
    """CIFAR-10, binary version: per image one label byte, then 1024 red, green and blue bytes each."""
    with tarfile.open(path, "r:gz") as archive:

        def read_batch(name: str) -> NDArray[np.uint8]:
            file = archive.extractfile(f"cifar-10-batches-bin/{name}.bin")
            assert file is not None
            return np.frombuffer(file.read(), dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)

        train = np.concatenate([read_batch(f"data_batch_{number}") for number in range(1, 6)])
        test = read_batch("test_batch")
    arrays: dict[str, Any] = {}
    for pool, rows in (("train", train), ("test", test)):
        arrays[f"x_{pool}"] = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays[f"y_{pool}"] = rows[:, 0]
    return Dataset(name="cifar10", classes=10, **arrays)


def _read_idx(packed: bytes) -> NDArray[np.uint8]:
    """A gzipped idx file of bytes: two zeros, type 8, number of axes, each length big-endian, the data."""
    content = gzip.decompress(packed)
    start = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_emnist(path: Path) -> Dataset:
    """The 52 letters of EMNIST's byclass split, from `gzip.zip`.

    Its images are stored transposed; its labels are 0–9 digits, 10–35 A–Z, 36–61 a–z.
    """
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for pool in ("train", "test"):
            stem = f"gzip/emnist-byclass-{pool}"
            y = _read_idx(archive.read(f"{stem}-labels-idx1-ubyte.gz"))
            is_letter = y >= 10
            images = _read_idx(archive.read(f"{stem}-images-idx3-ubyte.gz"))
            arrays[f"x_{pool}"] = np.ascontiguousarray(images[is_letter].transpose(0, 2, 1))
            arrays[f"y_{pool}"] = y[is_letter] - 10
    return Dataset(name="emnist", classes=EMNIST_CLASSES, first_half=EMNIST_LOWER_CASE, **arrays)


def read_own_npz(path: Path, settings: TaskConfig) -> Dataset:
    """An `.npz` file of the user's own, known by its file's name."""
    return replace(read_npz(path, target=settings.predict), name=path.name)


def read_npz(
    path: Path,
    name: str = "npz",
    classes: int | None = None,
    first_half: tuple[int, ...] | None = None,
    target: TargetKind = "classes",
) -> Dataset:
    """A `.npz` file with `x_train, y_train, x_test, y_test`, or with `x, y` and a fixed split.

    Groups are in `client`, `writer` or `subject` (with `_train` and `_test` in the first form). Without
    `classes`, their number is the highest label plus one; labels may be texts. `target` says what `y` holds.
    """
    arrays = read_arrays(path)
    pools = ("_train", "_test") if "x_train" in arrays else ("",)
    if missing := [key for key in (f"{kind}{pool}" for pool in pools for kind in "xy") if key not in arrays]:
        raise InputError(
            f"{path} lacks {', '.join(map(repr, missing))}: expected x_train, y_train, x_test, y_test, "
            f"or x, y (found: {', '.join(sorted(arrays))})"
        )
    y: Sequence[NDArray[Any]] = [arrays[f"y{pool}"] for pool in pools]
    group: Sequence[NDArray[Any] | None] = [None] * len(pools)
    names: dict[str, tuple[str, ...]] = {}
    with refuse_damaged(path):
        if target == "classes" and all(one.dtype.kind == "U" for one in y):
            y, names["class_names"] = number_together(y)
        count = count_targets(np.concatenate(y), target, path)
        for key in _GROUP_KEYS:
            if not names.get("group_names") and all(f"{key}{pool}" in arrays for pool in pools):
                group, names["group_names"] = number_together([arrays[f"{key}{pool}"] for pool in pools])
    if classes is not None and count > classes:
        raise InputError(f"{path}: the highest label is {count - 1}, but {name} has {classes} classes")
    fields: dict[str, Any] = {"classes": classes or count, "target": target, **names}
    if len(pools) == 1:
        return split_dataset(name, arrays["x"], y[0], group[0], **fields)
    fields |= {"group_train": group[0], "group_test": group[1], "first_half": first_half}
    return Dataset(name, arrays["x_train"], y[0], arrays["x_test"], y[1], **fields)


def read_hapt(path: Path) -> Dataset:
    """HAR from UCI HAPT's raw recordings, cut into windows within each labelled interval.

    `RawData/labels.txt` has experiment, user, activity 1–12, first and last reading (from 1).
    """
    windows: list[NDArray[np.float32]] = []
    rows: list[tuple[int, int, int]] = []
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("RawData/")[2]: name for name in archive.namelist() if "RawData/" in name}

        def read_table(name: str) -> NDArray[np.float64]:
            return np.loadtxt(io.BytesIO(archive.read(names[name])), ndmin=2)

        intervals = read_table("labels.txt").astype(np.int64)
        recordings: dict[int, int] = {}
        for experiment, person in sorted({(int(row[0]), int(row[1])) for row in intervals}):
            stem = f"exp{experiment:02d}_user{person:02d}.txt"
            signal = np.hstack([read_table(f"acc_{stem}"), read_table(f"gyro_{stem}")]).astype(np.float32)
            found, activities = _cut_windows(signal, intervals[intervals[:, 0] == experiment])
            recording = recordings.get(person, 0)
            recordings[person] = recording + 1
            windows += found
            rows += [(activity, person, recording) for activity in activities]
        stacked = np.stack(windows)
    y, person_of, recording_of = np.array(rows).T
    return _make_har(stacked, y, person_of, recording_of)


def _cut_windows(
    signal: NDArray[np.float32], intervals: NDArray[np.int64]
) -> tuple[list[NDArray[np.float32]], list[int]]:
    """Windows of one experiment and the activity (from 0) of each; without postural transitions (7–12)."""
    windows: list[NDArray[np.float32]] = []
    activities: list[int] = []
    for _, _, activity, first, last in intervals:
        if activity > len(HAR_ACTIVITIES):
            continue
        for start in range(first - 1, min(last, len(signal)) - _WINDOW_LENGTH + 1, _WINDOW_STEP):
            windows.append(signal[start : start + _WINDOW_LENGTH])
            activities.append(int(activity) - 1)
    return windows, activities


def read_har_npz(path: Path) -> Dataset:
    """HAR from `har.npz`: windows `x (n, 128, 6)`, `y`, `subject`, and `recording` within a subject."""
    arrays = read_arrays(path)
    missing = [key for key in ("x", "y", "subject", "recording") if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)} (found: {', '.join(sorted(arrays))})")
    count_classes(arrays["y"], path)
    return _make_har(arrays["x"], arrays["y"], arrays["subject"], arrays["recording"])


def _make_har(
    windows: NDArray[Any], y: NDArray[Any], person: NDArray[Any], recording: NDArray[Any]
) -> Dataset:
    """Makes the data set from its windows; features are standardised by the training pool's mean and spread.

    Windows overlap, so training and test are split by recording: no recording is in both.

    Args:
        windows: (n, 128, 6), three accelerations and three angular speeds.
        y: Activity 0–5.
        person: Person recorded.
        recording: 0, 1, … within a person; the second one (1) is its test data.
    """
    if windows.ndim != 3 or windows.shape[1:] != (_WINDOW_LENGTH, 6):
        raise InputError(f"har: windows have shape {windows.shape}, expected (n, {_WINDOW_LENGTH}, 6)")
    if any(array.shape != (len(windows),) for array in (y, person, recording)):
        raise InputError("har: x, y, subject and recording differ in length")
    if windows.dtype.kind not in "buif":
        raise InputError(f"har: x holds {windows.dtype}, expected numbers")
    if not np.isfinite(windows).all():
        raise InputError("har: x holds values that are not finite (NaN or infinity)")
    is_test = recording == 1
    if is_test.all() or not is_test.any():
        raise InputError("har: needs at least two recordings, one to train on and one to test on")
    with np.errstate(all="ignore"):  # too large for float32 becomes infinite: `Dataset` refuses it
        x = _window_features(windows)
        mean, spread = x[~is_test].mean(axis=0), x[~is_test].std(axis=0)
        x = (x - mean) / np.maximum(spread, 1e-6)
    return divide_points("har", x, y, person, is_test, classes=len(HAR_ACTIVITIES))


def _window_features(windows: NDArray[Any]) -> NDArray[np.float32]:
    """168 features per window: mean, spread, extremes, roughness and low frequencies of eight signals.

    The eight are the six signals and the two magnitudes, which do not depend on how the phone is turned.
    """
    x = windows.astype(np.float32)
    magnitudes = [np.linalg.norm(x[..., axes], axis=-1, keepdims=True) for axes in ([0, 1, 2], [3, 4, 5])]
    signals = np.concatenate([x, *magnitudes], axis=-1)
    mean = signals.mean(axis=1)
    spectrum = np.abs(np.fft.rfft(signals - mean[:, None], axis=1))[:, 1 : _KEPT_FREQUENCIES + 1]
    features = [
        mean,
        signals.std(axis=1),
        signals.min(axis=1),
        signals.max(axis=1),
        np.abs(np.diff(signals, axis=1)).mean(axis=1),
        np.log1p(spectrum).reshape(len(x), -1),
    ]
    return np.concatenate(features, axis=1).astype(np.float32)
