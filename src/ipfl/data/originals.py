"""Where the originals are published, and how they get into the cache: pooch, with a checksum.

CIFAR-10: the md5 is on its own page. EMNIST: NIST publishes none; this md5 is the one torchvision checks.
HAPT: UCI publishes none; this sha256 is the one that several public projects pin for the same archive
(79,596,192 bytes). LEAF publishes scripts, not files: FEMNIST must be made with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch

from ipfl.errors import InputError


@dataclass(frozen=True)
class Original:
    """One published archive."""

    url: str
    file: str
    """Name in the cache."""
    checksum: str


ORIGINALS = {
    "cifar10": Original(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
    "emnist": Original(
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "emnist-gzip.zip",
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    ),
    "har": Original(
        "https://archive.ics.uci.edu/static/public/341/"
        "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
        "hapt.zip",
        "sha256:4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
    ),
}

LEAF = (
    "LEAF publishes scripts, not files: in a clone of https://github.com/TalwalkarLab/leaf run "
    "data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample, then put the all_data_*.json of "
    "data/femnist/data/all_data into a folder (or zip) named femnist inside $IPFL_DATA"
)


def cache() -> Path:
    """Folder of the downloads, per user, as the operating system has it."""
    return Path(pooch.os_cache("ipfl"))


class _Bar:
    """The four things pooch wants of a progress bar, shown by rich."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns)
        self._task = self._progress.add_task(title, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()


def _download(url: str, output_file: Any, pooch_: Any) -> None:
    bar = _Bar(url.rpartition("/")[2])
    try:
        pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16)(url, output_file, pooch_)
    finally:
        bar.close()


def retrieve(name: str) -> Path:
    """The original of a data set, from the cache or downloaded into it; its checksum is right.

    Raises:
        InputError: When it can be neither found nor downloaded, or the download is not the right file.
    """
    original = ORIGINALS[name]
    try:
        return Path(
            pooch.retrieve(
                original.url, original.checksum, fname=original.file, path=cache(), downloader=_download
            )
        )
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(
            f"cannot download {original.url} ({reason}); put it into {cache()} as {original.file}, "
            "or set IPFL_DATA to a folder with the .npz files"
        ) from error
