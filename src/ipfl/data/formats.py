"""Reads the published formats: CIFAR binary, EMNIST idx, LEAF JSON, UCI HAPT text; and `.npz`.

Every reader checks what it reads and raises InputError, one line, for a file that is damaged or not of
its format. Nothing here unpickles, and no small file unpacks to gigabytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import struct
import tarfile
import tokenize
import warnings
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

ROOM, RATIO = 2**28, 200
"""An archive may unpack to 256 MB and 200 times its size; the originals stay far below."""
MOST_CLASSES = 1000
"""So many a data set may always have; more only if it has as many labels."""

_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    ArithmeticError,  # a number beyond what a float or an int64 holds
    MemoryError,
    RuntimeError,  # nested too deeply; encrypted; links in a circle
    SyntaxError,  # the head of an array is a Python literal
    tokenize.TokenError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file raises into one line that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says it all, in one line
            yield
    except InputError:
        raise
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {path}: damaged or not in its published format ({reason})") from error


def _room(path: Path) -> int:
    """Bytes that an archive may unpack to."""
    return ROOM + RATIO * path.stat().st_size


@contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose members are packed in the two usual ways and are not large beyond all reason."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        # Of the others, bzip2 makes gigabytes of a kilobyte, and at once, whatever size the archive claims.
        if not {one.compress_type for one in members} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("packed in another way than deflate")
        if (size := sum(one.file_size for one in members)) > _room(path):
            raise ValueError(f"would unpack to {size} bytes")
        yield archive


def cifar10(path: Path) -> Dataset:
    """CIFAR-10 binary version: per image one label byte, then 1024 red, green and blue bytes each."""
    with reading(path), tarfile.open(path, "r:gz") as archive:

        def batch(name: str) -> NDArray[np.uint8]:
            info = archive.getmember(f"cifar-10-batches-bin/{name}.bin")
            member = archive.extractfile(info) if info.isreg() else None
            if member is None or info.size > _room(path):  # a sparse member is as large as it says it is
                raise ValueError(f"{name}.bin is no file of images")
            return np.frombuffer(member.read(), dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)

        train = np.concatenate([batch(f"data_batch_{number}") for number in range(1, 6)])
        test = batch("test_batch")
    pools = {"train": train, "test": test}
    arrays: dict[str, Any] = {}
    for pool, rows in pools.items():
        arrays[f"x_{pool}"] = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays[f"y_{pool}"] = rows[:, 0]
    return Dataset(name="cifar10", classes=10, **arrays)


def _idx(packed: bytes, room: int) -> NDArray[np.uint8]:
    """An idx file of bytes, gzipped: two zeros, type 8, number of axes, each length big-endian, the data."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        blob = file.read(room)
        if file.read(1):
            raise ValueError(f"would unpack to more than {room} bytes")
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
    with reading(path), _zip(path) as archive:
        for pool in ("train", "test"):
            stem = f"gzip/emnist-byclass-{pool}"
            y = _idx(archive.read(f"{stem}-labels-idx1-ubyte.gz"), _room(path))
            letters = y >= 10
            images = _idx(archive.read(f"{stem}-images-idx3-ubyte.gz"), _room(path))[letters]
            arrays[f"x_{pool}"] = np.ascontiguousarray(images.transpose(0, 2, 1))
            arrays[f"y_{pool}"] = y[letters] - 10
    return Dataset(name="emnist", classes=LETTERS, first_half=LOWER, **arrays)


def _leaf_files(path: Path) -> Iterator[Any]:
    if path.is_dir():
        for file in sorted(path.glob("all_data*.json")):
            yield json.loads(file.read_text())
    else:
        with _zip(path) as archive:
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
    with reading(path), _zip(path) as archive, np.errstate(invalid="ignore"):
        names = {name.rpartition("RawData/")[2]: name for name in archive.namelist() if "RawData/" in name}

        def table(name: str) -> NDArray[np.float64]:
            return np.loadtxt(io.BytesIO(archive.read(names[name])), ndmin=2)

        stretches = table("labels.txt").astype(np.int64)
        recordings: dict[int, list[int]] = {}
        for experiment, person in sorted({(int(row[0]), int(row[1])) for row in stretches}):
            recordings.setdefault(person, []).append(experiment)
            stem = f"exp{experiment:02d}_user{person:02d}.txt"
            signal = np.hstack([table(f"acc_{stem}"), table(f"gyro_{stem}")]).astype(np.float32)
            before = len(windows)
            for _, _, activity, first, last in stretches[stretches[:, 0] == experiment]:
                if activity > len(ACTIVITIES):
                    continue
                if first < 1:
                    raise ValueError(f"a stretch that begins at reading {first}")
                for start in range(first - 1, min(last, len(signal)) - WINDOW + 1, STEP):
                    windows.append(signal[start : start + WINDOW])
                    rows.append((int(activity) - 1, person, len(recordings[person]) - 1))
                if (len(windows) - before) * STEP > 2 * len(signal):
                    raise ValueError(f"the stretches of experiment {experiment} overlap")
        stacked = np.stack(windows)
    y, person_of, recording = np.array(rows).T
    return har(stacked, y, person_of, recording)


def grouped(name: str, x: NDArray[Any], y: NDArray[Any], group: NDArray[Any] | None, classes: int) -> Dataset:
    """A set without an official split: a fixed share held out of each group, or of each class."""
    given = [x, y] if group is None else [x, y, group]
    if len({array.shape[:1] for array in given}) > 1:
        raise InputError(f"{name}: points, labels and groups differ in length")
    if y.ndim != 1 or not len(y):
        raise InputError(f"{name}: labels have shape {y.shape}, expected one for each point")
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
    with reading(path), _zip(path) as archive:
        if not all(name.isprintable() for name in archive.namelist()):
            raise ValueError("an array without a readable name")
        return {one.filename.removesuffix(".npy"): _array(archive, one) for one in archive.infolist()}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array of an `.npz` file, if it is as large as its head says: NumPy makes room before it looks."""
    heads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(member) as file:
        shape, _, kind = heads[np.lib.format.read_magic(file)](file)
        size, body = math.prod(shape) * kind.itemsize, member.file_size - file.tell()
    if kind.hasobject:
        raise ValueError(f"{member.filename} holds pickled objects, which could run code")
    if not kind.itemsize or size != body:
        raise ValueError(f"{member.filename} should have {size} bytes of {kind}, but has {body}")
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _groups(arrays: Mapping[str, NDArray[Any]], *suffixes: str) -> list[NDArray[np.int64] | None]:
    """Groups of each pool, numbered together, so that a writer has one number in all."""
    for name in _GROUPS:
        found = [arrays[f"{name}{suffix}"] for suffix in suffixes if f"{name}{suffix}" in arrays]
        if len(found) == len(suffixes):
            if any(part.ndim != 1 for part in found):
                raise ValueError(f"{name} should have one entry for each point")
            numbers = np.unique(np.concatenate(found), return_inverse=True)[1].reshape(-1)
            return list(np.split(numbers, np.cumsum([len(part) for part in found])[:-1]))
    return [None] * len(suffixes)


def class_count(y: NDArray[Any], where: object) -> int:
    """Number of classes where nobody says it: the highest label plus one.

    Raises:
        InputError: No labels; or one so high that the model, which has an output for each class, would be
            huge for classes that do not exist.
    """
    if y.dtype.kind not in "ui" or not y.size:
        raise InputError(f"{where}: labels are {y.size} values of {y.dtype}, expected whole numbers")
    count = int(y.max()) + 1
    if count > max(MOST_CLASSES, y.size):
        raise InputError(f"{where}: label {count - 1} of {y.size} labels; classes are numbered from 0 on")
    return count


def npz(
    path: Path, name: str = "npz", classes: int | None = None, first_half: tuple[int, ...] | None = None
) -> Dataset:
    """A `.npz` file with `x_train, y_train, x_test, y_test`, or with `x, y` and a fixed split.

    Groups are in `client`, `writer` or `subject` (with `_train` and `_test` in the first form); the
    number of classes is the highest label plus one unless said.
    """
    arrays = arrays_of(path)
    pools = ("y_test", "x_test", "y_train", "x_train")
    split = "x_train" in arrays
    if missing := [key for key in (pools if split else ("x", "y")) if key not in arrays]:
        raise InputError(
            f"{path} lacks {', '.join(map(repr, missing))}: expected {', '.join(pools)}, or x, y (found: "
            f"{', '.join(sorted(arrays))})"
        )
    with reading(path):
        y = np.concatenate([arrays["y_train"], arrays["y_test"]]) if split else arrays["y"]
        count = class_count(y, path)
        train, *test = _groups(arrays, "_train", "_test") if split else _groups(arrays, "")
    if classes is not None and count > classes:
        raise InputError(f"{path}: the highest label is {count - 1}, but {name} has {classes} classes")
    count = classes or count
    if not split:
        return grouped(name, arrays["x"], y, train, count)
    given = {key: arrays[key] for key in pools}
    return Dataset(
        name=name, classes=count, first_half=first_half, group_train=train, group_test=test[0], **given
    )


def har_npz(path: Path) -> Dataset:
    """`har.npz`: windows `x (n, 128, 6)`, `y`, `subject`, `recording` within a subject."""
    arrays = arrays_of(path)
    missing = [key for key in ("x", "y", "subject", "recording") if key not in arrays]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)} (found: {', '.join(sorted(arrays))})")
    class_count(arrays["y"], path)
    return har(arrays["x"], arrays["y"], arrays["subject"], arrays["recording"])
