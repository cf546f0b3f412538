"""Reads the published formats: CIFAR binary, EMNIST idx, LEAF JSON, UCI HAPT text; and `.npz`.

Every reader checks what it reads and raises InputError, one line, for a file that is damaged or not of
its format. Nothing here unpickles.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.data.dataset import Dataset, held_out
from ipfl.data.har import ACTIVITIES, STEP, WINDOW, har
from ipfl.errors import InputError

LETTERS = 52
LOWER = tuple(range(26, 52))
TEST_SHARE = 0.2
"""Held out where a set has no official split."""

_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file raises into one line that names it."""
    try:
        yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path}: damaged or not in its published format ({reason})") from error


def cifar10(path: Path) -> Dataset:
    """CIFAR-10 binary version: per image one label byte, then 1024 red, green and blue bytes each."""
    with reading(path), tarfile.open(path) as archive:

        def batch(name: str) -> NDArray[np.uint8]:
            member = archive.extractfile(f"cifar-10-batches-bin/{name}.bin")
            if member is None:
                raise KeyError(name)
            return np.frombuffer(member.read(), dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)

        train = np.concatenate([batch(f"data_batch_{number}") for number in range(1, 6)])
        test = batch("test_batch")
    pools = {"train": train, "test": test}
    arrays: dict[str, Any] = {}
    for pool, rows in pools.items():
        arrays[f"x_{pool}"] = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays[f"y_{pool}"] = rows[:, 0]
    return Dataset(name="cifar10", classes=10, **arrays)


def _idx(blob: bytes) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, number of axes, each length big-endian, then the data."""
    zeros, kind, axes = struct.unpack(">HBB", blob[:4])
    if zeros != 0 or kind != 8:
        raise ValueError("no idx file of bytes")
    shape = struct.unpack(f">{axes}I", blob[4 : 4 + 4 * axes])
    return np.frombuffer(blob, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def emnist(path: Path) -> Dataset:
    """The 52 letters of EMNIST's byclass split, from `gzip.zip`.

    Its images are stored transposed; its labels are 0–9 digits, 10–35 A–Z, 36–61 a–z.
    """
    arrays: dict[str, Any] = {}
    with reading(path), zipfile.ZipFile(path) as archive:
        for pool in ("train", "test"):
            stem = f"gzip/emnist-byclass-{pool}"
            y = _idx(gzip.decompress(archive.read(f"{stem}-labels-idx1-ubyte.gz")))
            letters = y >= 10
            images = _idx(gzip.decompress(archive.read(f"{stem}-images-idx3-ubyte.gz")))[letters]
            arrays[f"x_{pool}"] = np.ascontiguousarray(images.transpose(0, 2, 1))
            arrays[f"y_{pool}"] = y[letters] - 10
    return Dataset(name="emnist", classes=LETTERS, first_half=LOWER, **arrays)


def _leaf_files(path: Path) -> Iterator[Any]:
    if path.is_dir():
        for file in sorted(path.glob("all_data*.json")):
            yield json.loads(file.read_text())
    else:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if re.search(r"(^|/)all_data[^/]*\.json$", name):
                    yield json.loads(archive.read(name))


def femnist(path: Path) -> Dataset:
    """LEAF's FEMNIST as its `preprocess.sh` writes it: a folder, or a zip, of `all_data_*.json`.

    LEAF's pixels run from 0 (ink) to 1 (paper); here ink is 255 on 0, as in EMNIST.
    """
    images: list[NDArray[np.uint8]] = []
    y: list[NDArray[np.int64]] = []
    writer: list[NDArray[np.int64]] = []
    numbers: dict[str, int] = {}
    with reading(path):
        for part in _leaf_files(path):
            for user, count in zip(part["users"], part["num_samples"], strict=True):
                data = part["user_data"][user]
                pixels = np.asarray(data["x"], dtype=np.float64).reshape(count, 28, 28)
                if not ((pixels >= 0) & (pixels <= 1)).all():
                    raise ValueError(f"pixels of writer {user} are not in [0, 1]")
                images.append(np.rint(255 * (1 - pixels)).astype(np.uint8))
                y.append(np.asarray(data["y"], dtype=np.int64).reshape(count))
                writer.append(np.full(count, numbers.setdefault(user, len(numbers))))
        if not images:
            raise ValueError("no all_data*.json in it")
    return grouped("femnist", np.concatenate(images), np.concatenate(y), np.concatenate(writer), 62)


def hapt(path: Path) -> Dataset:
    """UCI HAPT's raw recordings, cut into windows inside each labelled stretch of the six activities.

    `RawData/labels.txt` has experiment, user, activity 1–12, first and last reading (from 1); activities
    7–12 are the short postural transitions, left out.
    """
    windows: list[NDArray[np.float32]] = []
    rows: list[tuple[int, int, int]] = []
    with reading(path), zipfile.ZipFile(path) as archive:
        names = {name.rpartition("RawData/")[2]: name for name in archive.namelist() if "RawData/" in name}

        def table(name: str) -> NDArray[np.float64]:
            return np.loadtxt(io.BytesIO(archive.read(names[name])), ndmin=2)

        stretches = table("labels.txt").astype(np.int64)
        recordings: dict[int, list[int]] = {}
        for experiment, person in sorted({(int(row[0]), int(row[1])) for row in stretches}):
            recordings.setdefault(person, []).append(experiment)
            stem = f"exp{experiment:02d}_user{person:02d}.txt"
            signal = np.hstack([table(f"acc_{stem}"), table(f"gyro_{stem}")]).astype(np.float32)
            for _, _, activity, first, last in stretches[stretches[:, 0] == experiment]:
                if activity > len(ACTIVITIES):
                    continue
                for start in range(first - 1, last - WINDOW + 1, STEP):
                    windows.append(signal[start : start + WINDOW])
                    rows.append((int(activity) - 1, person, len(recordings[person]) - 1))
        stacked = np.stack(windows)
    y, person_of, recording = np.array(rows).T
    return har(stacked, y, person_of, recording)


def grouped(name: str, x: NDArray[Any], y: NDArray[Any], group: NDArray[Any] | None, classes: int) -> Dataset:
    """A set without an official split: a fixed share held out of each group, or of each class."""
    if len(x) != len(y) or (group is not None and len(group) != len(y)):
        raise InputError(f"{name}: points, labels and groups differ in length")
    test = held_out(np.asarray(y if group is None else group), TEST_SHARE, name)
    return Dataset(
        name=name,
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test],
        y_test=y[test],
        classes=classes,
        group_train=None if group is None else group[~test],
        group_test=None if group is None else group[test],
    )


_GROUPS = ("client", "writer", "subject")


def arrays_of(path: Path) -> Mapping[str, NDArray[Any]]:
    """All arrays of an `.npz` file; pickled objects are refused."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    with reading(path):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("no .npz archive")
        with archive:
            return {key: archive[key] for key in archive.files}


def _groups(arrays: Mapping[str, NDArray[Any]], *suffixes: str) -> list[NDArray[np.int64] | None]:
    """Groups of each pool, numbered together, so that a writer has one number in all."""
    for name in _GROUPS:
        found = [arrays[f"{name}{suffix}"] for suffix in suffixes if f"{name}{suffix}" in arrays]
        if len(found) == len(suffixes):
            numbers = np.unique(np.concatenate(found), return_inverse=True)[1].reshape(-1)
            return list(np.split(numbers, np.cumsum([len(part) for part in found])[:-1]))
    return [None] * len(suffixes)


def npz(
    path: Path, name: str = "npz", classes: int | None = None, first_half: tuple[int, ...] | None = None
) -> Dataset:
    """A `.npz` file with `x_train, y_train, x_test, y_test`, or with `x, y` and a fixed split.

    Groups are in `client`, `writer` or `subject` (with `_train` and `_test` in the first form); the
    number of classes is the highest label plus one unless said.
    """
    arrays = arrays_of(path)
    try:
        split = "x_train" in arrays
        y = np.concatenate([arrays["y_train"], arrays["y_test"]]) if split else arrays["y"]
        if y.dtype.kind not in "ui" or not y.size:
            raise InputError(f"{path}: labels are {y.size} values of {y.dtype}, expected whole numbers")
        count = int(y.max()) + 1 if classes is None else classes
        if not split:
            return grouped(name, arrays["x"], y, _groups(arrays, "")[0], count)
        pools = {key: arrays[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    except KeyError as error:
        raise InputError(
            f"{path} lacks {error}: expected x_train, y_train, x_test, y_test, or x, y (found: "
            f"{', '.join(sorted(arrays))})"
        ) from error
    train, test = _groups(arrays, "_train", "_test")
    return Dataset(
        name=name, classes=count, first_half=first_half, group_train=train, group_test=test, **pools
    )


def har_npz(path: Path) -> Dataset:
    """`har.npz`: windows `x (n, 128, 6)`, `y`, `subject`, `recording` within a subject."""
    arrays = arrays_of(path)
    missing = [key for key in ("x", "y", "subject", "recording") if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)} (found: {', '.join(sorted(arrays))})")
    return har(arrays["x"], arrays["y"], arrays["subject"], arrays["recording"])
