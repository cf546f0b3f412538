"""Finds the runs under a folder, and opens their stores for reading only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from ipfl.keep.file_names import SUMMARY_FILE
from ipfl.ledger.database import STORE_FILE
from ipfl.ledger.reader import Reader
from ipfl.ledger.store import RunStore
from ipfl.system.folder_lock import is_locked

MAX_FOLDER_DEPTH = 4
"""Folders inside each other that are looked through: a comparison is DIR/METHOD/seed-S."""
MAX_RUNS = 5_000
SCAN_SECONDS = 1.0
"""A list of runs is used so long before the folders are looked through again."""
RUNNING_SECONDS = 60.0
"""A run without news for longer counts as stopped."""


@dataclass(frozen=True)
class FoundRun:
    """A run that can be opened."""

    key: str
    """Its name in addresses: no slashes."""
    name: str
    folder: Path

    def stamp(self) -> list[tuple[int, int]]:
        """Time and size of its files that are there: other ones after a change."""
        found = []
        for name in (STORE_FILE, f"{STORE_FILE}-wal", SUMMARY_FILE):
            with suppress(OSError):
                status = (self.folder / name).stat()
                found.append((status.st_mtime_ns, status.st_size))
        return found

    def updated(self) -> float | None:
        """The time of the last change of its files, in seconds since 1970."""
        return max((time / 1e9 for time, _ in self.stamp()), default=None)


@dataclass
class FoundRuns:
    """The runs of a folder."""

    folder: Path
    _found: dict[str, FoundRun] = field(default_factory=dict)
    _scanned: float = float("-inf")
    _lock: Lock = field(default_factory=Lock)

    def find(self) -> dict[str, FoundRun]:
        """All runs by key, as of a moment ago."""
        with self._lock:
            if time.monotonic() - self._scanned > SCAN_SECONDS:
                self._found = {run.key: run for run in self._in_folder()}
                self._scanned = time.monotonic()
            return self._found

    def _in_folder(self) -> Iterator[FoundRun]:
        taken: set[str] = set()
        for count, folder in enumerate(sorted(_run_folders(self.folder))):
            if count >= MAX_RUNS:
                return
            relative = folder.relative_to(self.folder)
            name = folder.resolve().name if relative == Path() else relative.as_posix()
            key = make_key(name)
            while key in taken:
                key += "~"
            taken.add(key)
            yield FoundRun(key, name, folder)

    def open(self, run: FoundRun) -> RunStore:
        """The store of a run; its connections last for one question each.

        Raises:
            InputError: It cannot be read; the text says why.
        """
        return RunStore.open(run.folder)

    @contextmanager
    def read(self, run: FoundRun) -> Iterator[tuple[RunStore, Reader]]:
        """A run as of this moment."""
        store = self.open(run)
        with store.snapshot() as reader:
            yield store, reader

    def is_running(self, run: FoundRun) -> bool:
        """True if a process is at work on the run: it holds the folder.

        Where that cannot be told, news count: a file that was written lately.
        """
        is_held = is_locked(run.folder)
        if is_held is not None:
            return is_held
        return time.time() - (run.updated() or 0.0) < RUNNING_SECONDS


def make_key(name: str) -> str:
    """A run's name in addresses."""
    return name.replace("/", "~")


def _run_folders(top: Path) -> Iterator[Path]:
    """Folders with a run store; nothing is looked for inside them."""
    for path, folders, files in os.walk(top):
        here = Path(path)
        depth = len(here.relative_to(top).parts)
        if STORE_FILE in files:
            folders.clear()
            yield here
        elif depth >= MAX_FOLDER_DEPTH:
            folders.clear()
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))
