"""The folder of a comparison: one process at a time is at work in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE, METRICS_FILE, PLAN_FILE
from ipfl.system.files import make_folder, remove, remove_folder
from ipfl.system.folder_lock import FolderLock


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Makes a folder for results, and lets no other process in until the end."""
    try:
        make_folder(path)
    except OSError as error:
        raise InputError(f"cannot write results to {path}: {error.strerror}") from error
    lock = FolderLock(path)
    try:
        yield
    finally:
        lock.release()


def clear_folder(path: Path, *, overwrite: bool) -> None:
    """Refuses a folder with results, or removes those that a comparison left there, its plan first."""
    files = [path / PLAN_FILE, path / COMPARISON_FILE]
    runs = [metrics.parent for metrics in path.glob(f"*/seed-*/{METRICS_FILE}")]
    is_run = (path / METRICS_FILE).exists()
    if is_run or (not overwrite and (runs or any(file.exists() for file in files))):
        hint = "choose another folder" if is_run else "overwrite it, or choose another folder"
        raise InputError(f"{path} already holds a run; {hint}")
    for file in files:
        remove(file)
    for run in runs:
        remove_folder(run)
        if not any(run.parent.iterdir()):
            run.parent.rmdir()
