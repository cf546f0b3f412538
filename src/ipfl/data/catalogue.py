"""The catalogue: every data set is declared here, once, and found, downloaded and loaded by its name.

Downloads go into the user's cache, with a checksum (by pooch).

To add a data set, write its reader in `readers.py` and its entry in `DATASETS`.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TaskConfig
from ipfl.data.dataset import Dataset, choose_test_points, divide_points
from ipfl.errors import InputError, unknown

DatasetReader = Callable[[Path], Dataset]
UserFileReader = Callable[[Path, TaskConfig], Dataset]
"""Reads `task.path` as the other settings of the task say."""
EMNIST_CLASSES = 52
EMNIST_LOWER_CASE = tuple(range(26, 52))
HAR_ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")


def _reader(place: str, **options: Any) -> Callable[..., Dataset]:
    """A function of this package as `module:function`, imported when it is called."""
    module, _, name = place.partition(":")

    def read(*given: Any) -> Dataset:
        return cast(Dataset, getattr(import_module(f"ipfl.data.{module}"), name)(*given, **options))

    return read


@dataclass(frozen=True)
class Download:
    """One published archive, and the `.npz` file that a data folder may have in its place."""

    url: str
    file: str
    """Name in the cache."""
    checksum: str
    """As pooch writes it: `md5:…` or `sha256:…`."""
    read: DatasetReader
    """Reads the archive."""
    npz: str
    """Name in the data folder."""
    read_npz: DatasetReader

    def ensure(self) -> Path:
        """Downloads the archive unless it is in the cache already with the right checksum.

        Raises:
            InputError: The download failed, or its checksum is wrong.
        """
        import pooch

        try:
            return Path(pooch.retrieve(self.url, self.checksum, fname=self.file, path=cache_folder()))
        except (OSError, ValueError) as error:
            reason = str(error).split("\n")[0][:200]
            raise InputError(
                f"cannot download {self.url} ({reason}); put it into {cache_folder()} as {self.file}, "
                "or set IPFL_DATA to a folder with the .npz files"
            ) from error

    def find(self) -> Path | None:
        """Path of the archive in the cache, its checksum not checked; None if it is not there."""
        path = cache_folder() / self.file
        return path if path.is_file() else None


def cache_folder() -> Path:
    """Folder of the downloads: the operating system's cache folder of the user."""
    import pooch

    return Path(pooch.os_cache("ipfl"))


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """One data set: what `ipfl datasets` lists, and the ways to get it.

    It has `make`, or `read_user_file`, or `download`.
    """

    name: str
    summary: str
    license: str
    classes: int | None = None
    """None where it depends on the file."""
    shape: tuple[int, ...] | None = None
    """Shape of one point; None where it depends on the file."""
    source: str = ""
    """The origin, if it is not a download."""
    make: Callable[[], Dataset] | None = None
    """Makes it without a file: it is bundled."""
    read_user_file: UserFileReader | None = None
    """Reads the file in `task.path`."""
    download: Download | None = None

    @property
    def origin(self) -> str:
        """The origin, in words or as an address."""
        return self.source if self.download is None else self.download.url


def _read_digits() -> Dataset:
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


_ALL = (
    DatasetInfo(
        name="digits",
        summary="1,797 handwritten digits, 1,500 to train on and 297 to test; needs no download",
        classes=10,
        shape=(8, 8, 1),
        license="UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
        source="bundled with scikit-learn",
        make=_read_digits,
    ),
    DatasetInfo(
        name="cifar10",
        summary="60,000 colour photographs of 10 kinds of things",
        classes=10,
        shape=(32, 32, 3),
        license="Krizhevsky 2009, research use",
        download=Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            file="cifar-10-binary.tar.gz",
            checksum="md5:c32a1d4ab5d03f1284b67883e8d87530",  # published on the same page
            read=_reader("readers:read_cifar10"),
            npz="cifar10.npz",
            read_npz=_reader("readers:read_npz", name="cifar10", classes=10),
        ),
    ),
    DatasetInfo(
        name="emnist",
        summary="handwritten letters, upper and lower case apart: A–Z are 0–25, a–z are 26–51",
        classes=EMNIST_CLASSES,
        shape=(28, 28, 1),
        license="NIST, US government work",
        download=Download(
            url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            file="emnist-gzip.zip",
            checksum="md5:58c8d27c78d21e728a6bc7b3cc06412e",  # NIST publishes none; torchvision checks this
            read=_reader("readers:read_emnist"),
            npz="emnist_letters.npz",
            read_npz=_reader(
                "readers:read_npz", name="emnist", classes=EMNIST_CLASSES, first_half=EMNIST_LOWER_CASE
            ),
        ),
    ),
    DatasetInfo(
        name="har",
        summary="six activities of 30 people from a smartphone's motion, 168 features per window",
        classes=len(HAR_ACTIVITIES),
        shape=(168,),
        license="UCI HAPT (id 341), CC BY 4.0",
        download=Download(
            url="https://archive.ics.uci.edu/static/public/341/"
            "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
            file="hapt.zip",
            # UCI publishes none; several public projects use this one for this archive (79,596,192 bytes).
            checksum="sha256:4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
            read=_reader("readers:read_hapt"),
            npz="har.npz",
            read_npz=_reader("readers:read_har_npz"),
        ),
    ),
    *(
        DatasetInfo(
            name=name,
            summary=summary,
            license="yours",
            source="your folder" if name == "images" else "your file",
            read_user_file=_reader(place),
        )
        for name, summary, place in (
            ("npz", "your own .npz file (task.path)", "readers:read_own_npz"),
            (
                "csv",
                "your own table, a row per point (task.path, task.client, task.target)",
                "own.table_files:read_table_file",
            ),
            ("parquet", "the same as a Parquet file or folder", "own.table_files:read_table_file"),
            (
                "images",
                "your own folder: class/file.png, or client/class/file.png (task.path)",
                "own.image_folders:read_images",
            ),
        )
    ),
)
DATASETS: Mapping[str, DatasetInfo] = {info.name: info for info in _ALL}


def _info_of(name: str) -> DatasetInfo:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def _find_npz(download: Download) -> Path | None:
    """The data set's `.npz` file in the folder `$IPFL_DATA`; None if there is none."""
    text = os.environ.get("IPFL_DATA", "")
    if not text:
        return None
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise InputError(f"the data folder {folder} does not exist (IPFL_DATA)")
    return folder / download.npz if (folder / download.npz).is_file() else None


def locate(name: str) -> str | None:
    """The place that a data set is read from: `bundled`, a path, or None if it is not on this machine."""
    info = _info_of(name)
    if info.download is None:
        return None if info.make is None else "bundled"
    found = _find_npz(info.download) or info.download.find()
    return None if found is None else str(found)


def fetch_dataset(name: str) -> Path | None:
    """Downloads the archive of a data set into the cache, unless it is there; None for a bundled one.

    Raises:
        InputError: The data set cannot be downloaded; the message says what to do instead.
    """
    info = _info_of(name)
    if info.read_user_file is not None:
        raise InputError(f"{name} is your own data, there is nothing to download: set task.path")
    return None if info.download is None else info.download.ensure()


def load_dataset(name: str, *, path: Path | None = None, settings: TaskConfig | None = None) -> Dataset:
    """Reads a data set, from `$IPFL_DATA` or the cache; downloads it if it is in neither.

    Args:
        name: One of `DATASETS`.
        path: The user's own file or folder.
        settings: How the user's own file is to be read: its columns, or the size of images.

    Raises:
        InputError: The name is unknown, or the data is missing, damaged or not in its format.
    """
    info = _info_of(name)
    predict = "classes" if settings is None else settings.predict
    if predict != "classes" and info.read_user_file is None:
        raise InputError(f"{name} has classes to predict: task.predict = {predict!r} is for your own data")
    if info.read_user_file is not None:
        if path is None:
            raise InputError(f'dataset = "{name}" needs the path of your own data (task.path)')
        given = Path(path).expanduser()
        return info.read_user_file(given, settings or TaskConfig.of({"dataset": name, "path": given}))
    if info.download is None:
        assert info.make is not None
        return info.make()
    if (file := _find_npz(info.download)) is not None:
        return info.download.read_npz(file)
    # A file in the cache, too: its checksum is checked, and a wrong file is replaced.
    return info.download.read(info.download.ensure())
