"""The files of a run as evidence: which ones a round wrote, and whether they are still what it wrote.

A round's hash covers its checkpoint and what it left in `memory/` and `client_models/`; the closing, posted
when the run ends, covers all others. `metrics.jsonl` repeats the lines of the store, and is compared with
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ipfl.core.files import DRAFT_SUFFIX, RECORD_SUFFIX
from ipfl.ledger.database import STORE_FILE
from ipfl.runs.checkpoint import file_digest
from ipfl.runs.file_names import (
    CHECKPOINTS,
    CLIENT_MODELS,
    EXPORTS,
    MEMORY,
    METRICS_FILE,
    STOP_REQUEST_FILE,
    TRACE_FILE,
)

MEMORIES = (MEMORY, CLIENT_MODELS)
"""Folders with a folder per client and a file per round."""
NO_EVIDENCE = (STORE_FILE, METRICS_FILE, TRACE_FILE, STOP_REQUEST_FILE)
"""Files that no hash covers: the store has hashes of its own, the lines are in it, the profile is made when
all is over, and whoever asks for a stop is not the run."""


class FileState(NamedTuple):
    """What shows that a file was written again."""

    modified: int
    size: int


class RoundFiles:
    """What rounds leave with clients and about them, in the run's folder.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._known: dict[str, FileState] = {}
        self._seen: dict[str, FileState] = {}

    def changed(self) -> dict[str, str]:
        """SHA-256 of every file that was written since the last call of `accept`, by path.

        A client that was late leaves its file after its round: it counts to the next one.
        """
        self._seen = {path: _state(entry) for path, entry in _memory_files(self.folder)}
        changed = (path for path, state in self._seen.items() if self._known.get(path) != state)
        return {path: file_digest(self.folder / path) for path in sorted(changed)}

    def accept(self) -> None:
        """What `changed` told is posted."""
        self._known = self._seen

    def accept_until(self, round: int) -> None:
        """What rounds up to this one left is posted already."""
        found = _memory_files(self.folder)
        self._known = {path: _state(entry) for path, entry in found if _round_of(path) <= round}


def _state(entry: os.DirEntry[str]) -> FileState:
    found = entry.stat()
    return FileState(found.st_mtime_ns, found.st_size)


def _memory_files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Paths of the files that clients' rounds left."""
    for name in MEMORIES:
        for client in _entries(folder / name):
            for entry in _entries(client) if client.is_dir() else ():
                if version_of(entry.name) is not None:
                    yield f"{name}/{client.name}/{entry.name}", entry


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def version_of(name: str) -> int | None:
    """The round of a file of a client's memory; None for other files."""
    stem = name.removesuffix(RECORD_SUFFIX)
    return int(stem) if name.endswith(RECORD_SUFFIX) and stem.isascii() and stem.isdigit() else None


def all_files(folder: Path) -> list[str]:
    """Paths of all files of a run that evidence covers."""
    found = []
    for root, folders, names in os.walk(folder):
        if Path(root) == folder and EXPORTS in folders:
            folders.remove(EXPORTS)
        for name in names:
            path = PurePosixPath(Path(root, name).relative_to(folder).as_posix())
            is_store = path.name.startswith(STORE_FILE) and len(path.parts) == 1
            is_covered = not is_store and str(path) not in NO_EVIDENCE and path.suffix != DRAFT_SUFFIX
            if is_covered and Path(root, name).is_file():  # not a pipe, which would be waited for
                found.append(str(path))
    return sorted(found)


def result_files(folder: Path, posted: Mapping[str, tuple[int, str]]) -> dict[str, str]:
    """SHA-256 of every file that is there, for the closing.

    Args:
        folder: The run's.
        posted: What rounds cover: round and SHA-256 by path. These files are not read again.
    """
    return {
        path: posted[path][1] if path in posted else file_digest(folder / path) for path in all_files(folder)
    }


def file_findings(folder: Path, posted: Mapping[str, tuple[int, str]], until: int) -> Iterator[str]:
    """What is wrong with the files that rounds wrote, while the run may still go on.

    Args:
        folder: The run's.
        posted: Every file that rounds wrote: the last of these rounds, and its SHA-256.
        until: The last round with a checkpoint. Later ones are played again if the run goes on.
    """
    there = {path for path, _ in _memory_files(folder)}
    there |= {f"{CHECKPOINTS}/{entry.name}" for entry in _entries(folder / CHECKPOINTS)}
    needed = _needed(posted, until)
    for path in sorted(there | needed):
        if path.endswith(DRAFT_SUFFIX):
            continue
        if path not in posted:
            if _round_of(path) <= until:
                yield f"{path} is not a file that the run wrote"
            continue
        round, digest = posted[path]
        if path not in there:
            yield f"{path} is missing, which round {round} wrote"
        elif round <= until and not ((folder / path).is_file() and file_digest(folder / path) == digest):
            yield f"{path} is not the file that round {round} wrote"


def _needed(posted: Mapping[str, tuple[int, str]], until: int) -> set[str]:
    """The files of the newest checkpoint, and the newest file of each client, up to a round.

    Older ones may be gone. A checkpoint's files are all posted with its round, also those of earlier rounds.
    """
    newest: dict[str, tuple[int, str]] = {}
    checkpoints: dict[int, set[str]] = {}
    for path, (last, _) in posted.items():
        parent, round = path.rpartition("/")[0], _round_of(path)
        if parent == CHECKPOINTS:
            if last <= until:
                checkpoints.setdefault(last, set()).add(path)
        elif round <= until:
            newest[parent] = max(newest.get(parent, (-1, "")), (round, path))
    return {path for _, path in newest.values()} | checkpoints.get(max(checkpoints, default=-1), set())


def _round_of(path: str) -> int:
    """The round in the name of a file that a round wrote; −1 if there is none."""
    version = version_of(PurePosixPath(path).name.rpartition("-")[2])
    return -1 if version is None else version
