"""The data sets by name: what they are, where they would be read from, and reading them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ipfl.data import formats, originals
from ipfl.data.dataset import Dataset, held_out
from ipfl.data.gaussian import gaussian
from ipfl.errors import InputError, unknown


@dataclass(frozen=True)
class Source:
    """One data set, as `ipfl datasets` lists it."""

    name: str
    summary: str
    classes: int | None
    """None where it depends on the file."""
    shape: tuple[int, ...] | None
    """Shape of one point."""
    origin: str
    license: str


def _sources(*sources: Source) -> Mapping[str, Source]:
    return {source.name: source for source in sources}


DATASETS: Mapping[str, Source] = _sources(
    Source(
        "digits",
        "1,797 handwritten digits, 1,500 to train on and 297 to test; needs no download",
        10,
        (8, 8, 1),
        "bundled with scikit-learn",
        "UCI Optical Recognition of Handwritten Digits, CC BY 4.0",
    ),
    Source(
        "cifar10",
        "60,000 colour photographs of 10 kinds of things",
        10,
        (32, 32, 3),
        originals.ORIGINALS["cifar10"].url,
        "Krizhevsky 2009, research use",
    ),
    Source(
        "emnist",
        "handwritten letters, upper and lower case apart: A–Z are 0–25, a–z are 26–51",
        formats.LETTERS,
        (28, 28, 1),
        originals.ORIGINALS["emnist"].url,
        "NIST, US government work",
    ),
    Source(
        "femnist",
        "handwritten digits and letters by writer: 0–9, then A–Z, then a–z",
        62,
        (28, 28, 1),
        "https://github.com/TalwalkarLab/leaf (made with its scripts)",
        "NIST, US government work; LEAF BSD-2-Clause",
    ),
    Source(
        "har",
        "six activities of 30 people from a smartphone's motion, 168 features per window",
        6,
        (168,),
        originals.ORIGINALS["har"].url,
        "UCI HAPT (id 341), CC BY 4.0",
    ),
    Source(
        "gaussian",
        "the theory section's Gaussian means: two clusters of 100 clients, two classes",
        2,
        (8,),
        "drawn from a fixed seed",
        "none needed",
    ),
    Source("npz", "your own .npz file (task.path)", None, None, "your file", "yours"),
)

_STAND_INS: Mapping[str, tuple[str, Callable[[Path], Dataset]]] = {
    "cifar10": ("cifar10.npz", partial(formats.npz, name="cifar10", classes=10)),
    "emnist": (
        "emnist_letters.npz",
        partial(formats.npz, name="emnist", classes=formats.LETTERS, first_half=formats.LOWER),
    ),
    "femnist": ("femnist.npz", partial(formats.npz, name="femnist", classes=62)),
    "har": ("har.npz", formats.har_npz),
}
"""File of each data set in a folder of `.npz` files, and its reader."""

_READERS: Mapping[str, Callable[[Path], Dataset]] = {
    "cifar10": formats.cifar10,
    "emnist": formats.emnist,
    "har": formats.hapt,
}


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    y = bunch.target.astype(np.int64)
    test = held_out(y, 297 / len(y), "digits")
    return Dataset(
        name="digits", x_train=x[~test], y_train=y[~test], x_test=x[test], y_test=y[test], classes=10
    )


_BUNDLED: Mapping[str, Callable[[], Dataset]] = {"digits": _digits, "gaussian": gaussian}


def _folder(data_dir: Path | None) -> Path | None:
    said = str(data_dir) if data_dir is not None else os.environ.get("IPFL_DATA", "")
    if not said:
        return None
    folder = Path(said).expanduser()
    if not folder.is_dir():
        raise InputError(f"the data folder {folder} does not exist (task.data_dir or IPFL_DATA)")
    return folder


def _find(name: str, data_dir: Path | None) -> tuple[Path, Callable[[Path], Dataset]] | None:
    """File of a data set and its reader: the stand-in, LEAF's files, or a download already in the cache."""
    folder = _folder(data_dir)
    file, read = _STAND_INS[name]
    if folder is not None and (folder / file).is_file():
        return folder / file, read
    if name == "femnist":
        places = [place for place in (folder, originals.cache()) if place is not None]
        for path in (place / made for place in places for made in ("femnist", "femnist.zip")):
            if path.exists():
                return path, formats.femnist
        return None
    cached = originals.cache() / originals.ORIGINALS[name].file
    return (cached, _READERS[name]) if cached.is_file() else None


def _known(name: str) -> None:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)


def available(name: str, data_dir: Path | None = None) -> str | None:
    """Where a data set would be read from: `bundled`, a path, or None if it is not on this machine."""
    _known(name)
    if name in _BUNDLED:
        return "bundled"
    found = _find(name, data_dir) if name in _STAND_INS else None
    return None if found is None else str(found[0])


def fetch(name: str) -> list[Path]:
    """Downloads the originals of a data set into the cache, unless they are there.

    Returns:
        Their paths; none for what is bundled.

    Raises:
        InputError: When there is nothing to download, or it fails; says what to do instead.
    """
    _known(name)
    if name in _BUNDLED:
        return []
    if name == "femnist":
        raise InputError(f"femnist cannot be downloaded: {originals.LEAF}")
    if name == "npz":
        raise InputError("npz is your own file, there is nothing to download: set task.path")
    return [originals.retrieve(name)]


def load(name: str, *, path: Path | None = None, data_dir: Path | None = None) -> Dataset:
    """Reads a data set; downloads its original if it is nowhere on this machine.

    Args:
        name: One of `DATASETS`.
        path: The file of `npz`.
        data_dir: Folder with `.npz` files; else `$IPFL_DATA`, else the cache.

    Raises:
        InputError: When the name is unknown, or the data is not there, damaged or not what it should be.
    """
    _known(name)
    if name in _BUNDLED:
        return _BUNDLED[name]()
    if name == "npz":
        if path is None:
            raise InputError('dataset = "npz" needs the path of your file (task.path)')
        return formats.npz(Path(path).expanduser())
    found = _find(name, data_dir)
    if found is None and name == "femnist":
        raise InputError(f"femnist is not on this machine: {originals.LEAF}")
    if found is None or found[1] is _READERS.get(name):
        # Also for what is in the cache already: its checksum is looked at, a wrong file is replaced.
        return _READERS[name](originals.retrieve(name))
    return found[1](found[0])
