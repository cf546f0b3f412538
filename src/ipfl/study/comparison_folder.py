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
from ipfl.system.files import FolderLock, make_folder, remove, remove_folder, rename

FIGURE_FILES = ("convergence.png", "convergence.pdf", "pma.png", "pma.pdf")
"""Figures that `ipfl compare` draws beside it; known here because another comparison must not leave them."""
COMPARISON_FILES = (PLAN_FILE, COMPARISON_FILE, *FIGURE_FILES)
"""All files that a comparison may write beside those of its runs."""
MOVING, ASIDE = ".moving", ".replaced"
"""Folder for an earlier comparison: while it is moved, and when all of it is there."""


def comparison_files(folder: Path) -> list[Path]:
    """All files that a comparison may write beside those of its runs."""
    return [folder / name for name in COMPARISON_FILES]


class ComparisonFolder:
    """The folder of a comparison; as a context, no other process is let in.

    Whatever moment a process dies at, `recover` finds an earlier comparison whole, or the new one.
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

    def recover(self) -> None:
        """Ends what a process that died has left."""
        if (self.path / MOVING).exists():
            self._put_back()
        if (self.path / ASIDE).exists():
            self.settle()

    def prepare(self, *, overwrite: bool) -> None:
        """Refuses a folder with results, or sets those that a comparison left there aside."""
        runs = [metrics.parent for metrics in self.path.glob(f"*/seed-*/{METRICS_FILE}")]
        is_run = (self.path / METRICS_FILE).exists()
        if is_run or (not overwrite and (runs or (self.path / COMPARISON_FILE).exists())):
            hint = "choose another folder" if is_run else "overwrite it, or choose another folder"
            raise InputError(f"{self.path} already holds a run; {hint}")
        found = [*runs, *(file for file in comparison_files(self.path) if file.exists())]
        if not found:
            return
        for old in found:
            place = self.path / MOVING / old.relative_to(self.path)
            make_folder(place.parent)
            rename(old, place)
        rename(self.path / MOVING, self.path / ASIDE)
        _remove_empty(runs)

    def settle(self) -> bool:
        """Removes the earlier comparison if a run of the new one has begun; otherwise puts it back.

        Returns:
            Whether there is a new comparison, or there was no earlier one.
        """
        if not (self.path / ASIDE).exists():
            return True
        if any(map(holds_run, self.path.glob("*/seed-*"))):
            remove_folder(self.path / ASIDE)
            return True
        failed = list(self.path.glob("*/seed-*"))
        for begun in failed:
            remove_folder(begun)
        _remove_empty(failed)
        for file in comparison_files(self.path):
            remove(file)
        rename(self.path / ASIDE, self.path / MOVING)
        self._put_back()
        return False

    def _put_back(self) -> None:
        moving = self.path / MOVING
        for old in sorted([*moving.glob("*/seed-*"), *comparison_files(moving)]):
            if old.exists():
                place = self.path / old.relative_to(moving)
                make_folder(place.parent)
                rename(old, place)
        remove_folder(moving)


def _remove_empty(runs: Iterable[Path]) -> None:
    """Removes the folders of methods that had no other runs."""
    for parent in {run.parent for run in runs}:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
