"""Downloads published archives into the user's cache, with a checksum (by pooch) and a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipfl.data.dataset import Dataset
from ipfl.errors import InputError


@dataclass(frozen=True)
class Download:
    """One published archive."""

    url: str
    file: str
    """Name in the cache."""
    checksum: str
    """As pooch writes it: `md5:…` or `sha256:…`."""
    read: Callable[[Path], Dataset]
    """Reads the archive."""

    def ensure(self) -> Path:
        """Downloads the archive unless it is in the cache already with the right checksum.

        Raises:
            InputError: The download failed, or its checksum is wrong.
        """
        import pooch

        try:
            return Path(
                pooch.retrieve(
                    self.url,
                    self.checksum,
                    fname=self.file,
                    path=cache_folder(),
                    downloader=_download_with_progress,
                )
            )
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


class _ProgressBar:
    """The interface that pooch needs of a progress bar, shown by rich."""

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


def _download_with_progress(url: str, output_file: Any, pooch_: Any) -> None:
    import pooch

    bar = _ProgressBar(url.rpartition("/")[2])
    try:
        pooch.HTTPDownloader(progressbar=bar, chunk_size=2**16)(url, output_file, pooch_)
    finally:
        bar.close()
