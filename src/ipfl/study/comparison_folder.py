"""The folder of a comparison: kept by one process at a time, and overwritten only once the new one has begun.

With `overwrite`, an earlier comparison is set aside in the same folder. It goes when a run of the new one has
begun; if none can, or the process dies before that, it is put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE, METRICS_FILE, PLAN_FILE
from ipfl.keep.run_folder import holds_run
from ipfl.system.files import make_folder, remove, remove_folder, rename
from ipfl.system.folder_lock import FolderLock

ASIDE = ".replaced"
"""Folder for an earlier comparison."""


def comparison_files(folder: Path) -> list[Path]:
    """All files that a comparison may write beside those of its runs, the plan last."""
    return [folder / name for name in (COMPARISON_FILE, PLAN_FILE)]


class ComparisonFolder:
    """The folder of a comparison; as a context, no other process is let in.

    Whatever moment a process dies at, `settle` finds an earlier comparison whole, or the new one. Its plan is
    moved aside first and comes back last, so there is none in the folder while the rest is on its way.
    """

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> ComparisonFolder:
        try:
            make_folder(self.path)
        except OSError as error:
            raise InputError(f"cannot write results to {self.path}: {error.strerror}") from error
        self._lock = FolderLock(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.settle()
        finally:
            self._lock.release()

    def prepare(self, *, overwrite: bool) -> None:
        """Refuses a folder with results, or sets those that a comparison left there aside."""
        runs = [metrics.parent for metrics in self.path.glob(f"*/seed-*/{METRICS_FILE}")]
        is_run = (self.path / METRICS_FILE).exists()
        if is_run or (not overwrite and (runs or (self.path / COMPARISON_FILE).exists())):
            hint = "choose another folder" if is_run else "overwrite it, or choose another folder"
            raise InputError(f"{self.path} already holds a run; {hint}")
        for old in [*reversed(comparison_files(self.path)), *runs]:
            _move(old, self.path, self.path / ASIDE)
        _remove_empty(runs)

    def settle(self) -> bool:
        """Removes the earlier comparison if a run of the new one has begun; otherwise puts it back.

        Returns:
            Whether there is a new comparison, or there was no earlier one.
        """
        aside = self.path / ASIDE
        if not aside.exists():
            return True
        if (self.path / PLAN_FILE).exists():
            runs = list(self.path.glob("*/seed-*"))
            if any(map(holds_run, runs)):
                remove_folder(aside)
                return True
            for failed in runs:
                remove_folder(failed)
            _remove_empty(runs)
            for file in comparison_files(self.path):
                remove(file)
        for old in [*aside.glob("*/seed-*"), *comparison_files(aside)]:
            _move(old, aside, self.path)
        remove_folder(aside)
        return False


def _move(old: Path, here: Path, there: Path) -> None:
    """Moves a file or folder, if it is there, from one folder to the same place in another."""
    if old.exists():
        place = there / old.relative_to(here)
        make_folder(place.parent)
        rename(old, place)


def _remove_empty(runs: Iterable[Path]) -> None:
    """Removes the folders of methods that had no other runs."""
    for parent in {run.parent for run in runs}:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
