"""A process that dies at a numbered operation on its files or its store, without a process for each death.

Every operation of `ipfl.system.files` and every commit of the store is counted. At the chosen one the folder
is copied as it is on disk at this moment (the store with its log), and an exception ends the run. Whatever
that exception makes the run clean up happens in the old folder; the copy is what a killed process leaves,
and the run goes on from there.

A power failure is one more way to die (`PowerFailure`): of what was not synced, anything may be left.

What this does not simulate: a death or a power failure inside SQLite's own writes, deaths of worker processes
(`test_resume.py` kills real ones), and memory on deployed nodes.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import copy_run, run_small

import ipfl
from ipfl.keep.run_folder import holds_run
from ipfl.ledger import database
from ipfl.system import files

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "seed": 3,
    "train": ipfl.TrainConfig(per_round=2, epochs=1),
    "evaluate": ipfl.EvaluateConfig(every=3, holdout=4),
}
TASK = {"clients": 3, "samples": 8, "test_samples": 4, "distributions": "permuted:2"}
AFTER_CONTENT = ("written", "appended")
"""Operations after which a file may have been written in part."""


class KilledError(BaseException):
    """The process dies here; not an `Exception`, so that nothing handles it."""


class Kill:
    """Counts operations, and dies at one of them.

    Args:
        folder: Of the run.
        image: Where a copy of the folder goes at that moment.
        at: The number of the operation, from 1; 0: none, all are only counted.
        torn: Whether a file that has just been written is left with half of its content.
    """

    def __init__(self, folder: Path, image: Path, at: int = 0, torn: bool = False):
        self.folder, self.image, self.at, self.torn = folder, image, at, torn
        self.kinds: list[str] = []
        self.paths: list[Path] = []

    def operation(self, kind: str, path: Path) -> None:
        """An operation is about to happen."""
        if self.at and len(self.kinds) >= self.at:
            return  # dead already: this is the exception on its way
        self.kinds.append(kind)
        self.paths.append(path)
        if len(self.kinds) != self.at:
            return
        if self.torn and kind in AFTER_CONTENT and path.is_file():
            os.truncate(path, path.stat().st_size // 2 if kind == "written" else path.stat().st_size - 9)
        if self.folder.exists():
            copy_run(self.folder, self.image)
            self.lose()
        raise KilledError

    def lose(self) -> None:
        """What the image lacks of the folder; nothing, where only the process dies."""

    def __enter__(self) -> Kill:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(files, "before_operation", self.operation)
        writing = database.writing

        @contextmanager
        def counted(file: Path) -> Iterator[sqlite3.Connection]:
            with writing(file) as connection:
                yield connection
                if is_changed := bool(connection.total_changes):
                    self.operation("commit", self.folder)
            if is_changed:
                self.operation("committed", self.folder)

        self._patch.setattr(database, "writing", counted)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


class PowerFailure(Kill):
    """Dies as a machine without power does: a file that was not synced is torn, of zeros, empty or gone.

    A file is safe with the content that it had when it was synced, if its name was there when its folder was
    synced, and so on for the folders up to that of the run. The store syncs what it commits itself.
    """

    def __init__(self, folder: Path, image: Path, at: int, chance: random.Random):
        super().__init__(folder, image, at)
        self.chance = chance
        self.contents: dict[int, tuple[int, int]] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.lost: list[str] = []

    def operation(self, kind: str, path: Path) -> None:
        """The same, and notes what is synced."""
        super().operation(kind, path)
        found = path.stat() if kind == "sync" else None
        if found is not None and path.is_dir():
            self.names[found.st_ino] = {one.name: one.stat().st_ino for one in path.iterdir()}
        elif found is not None:
            self.contents[found.st_ino] = (found.st_mtime_ns, found.st_size)

    def is_safe(self, path: Path) -> bool:
        """Whether a file of the folder is on disk as it is."""
        found = path.stat()
        if self.contents.get(found.st_ino) != (found.st_mtime_ns, found.st_size):
            return False
        while path != self.folder:
            if self.names.get(path.parent.stat().st_ino, {}).get(path.name) != path.stat().st_ino:
                return False
            path = path.parent
        return True

    def lose(self) -> None:
        """Damages what was not synced."""
        for path in sorted(self.folder.rglob("*")):
            place = path.relative_to(self.folder)
            if path.is_dir() or place.name.startswith("run.db") or self.is_safe(path):
                continue
            copy, size = self.image / place, path.stat().st_size
            self.lost.append(str(place))
            damage = self.chance.choice(["torn", "zeros", "empty", "gone"])
            if damage == "gone":
                copy.unlink()
            elif damage == "zeros":
                copy.write_bytes(bytes(size))
            else:
                os.truncate(copy, size // 2 if damage == "torn" else 0)


def play(task: ipfl.Task, method: str, folder: Path, *, overwrite: bool = False) -> None:
    """Begins a run, or goes on with the one that the folder holds."""
    resume = not overwrite and holds_run(folder)
    run_small(task, method, folder, resume=resume, overwrite=overwrite, **SETTINGS)


def is_killed(task: ipfl.Task, method: str, kill: Kill, *, overwrite: bool = False) -> bool:
    """Plays until the operation; returns whether the run got that far."""
    try:
        with kill:
            play(task, method, kill.folder, overwrite=overwrite)
    except KilledError:
        return True
    return False
