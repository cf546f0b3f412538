"""The files of a run as evidence: which ones a round wrote, and whether they are still what it wrote.

A round's hash covers its checkpoint and what it left in `memory/` and `client_models/`; the closing, posted
when the run ends, covers all others. `metrics.jsonl` repeats the lines of the store, and is compared with
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ipfl.keep.checkpoint import file_digest
from ipfl.keep.file_names import (
    CHECKPOINTS,
    CLIENT_MODELS,
    EXPORTS,
    MEMORY,
    METRICS_FILE,
    TRACE_FILE,
)
from ipfl.ledger.database import STORE_FILE
from ipfl.system.files import DRAFT_SUFFIX, RECORD_SUFFIX, sync_all

MEMORIES = (MEMORY, CLIENT_MODELS)
"""Folders with a folder per client and a file per round."""
ROUND_FOLDERS = tuple(f"{name}/" for name in (CHECKPOINTS, *MEMORIES))
"""What paths of files that rounds write begin with."""
NO_EVIDENCE = (STORE_FILE, METRICS_FILE, TRACE_FILE)
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

        They are on disk when this returns. A client that was late leaves its file after its round: it counts
        to the next one.
        """
        self._seen = {path: _state(entry) for path, entry in _memory_files(self.folder)}
        changed = sorted(path for path, state in self._seen.items() if self._known.get(path) != state)
        sync_with_folders(self.folder, changed)
        return {path: file_digest(self.folder / path) for path in changed}

    def accept(self) -> None:
        """What `changed` told is posted."""
        self._known = self._seen

    def accept_until(self, round: int) -> None:
        """What rounds up to this one left is posted already."""
        found = _memory_files(self.folder)
        self._known = {path: _state(entry) for path, entry in found if _round_of(path) <= round}


def sync_with_folders(folder: Path, paths: Iterable[str]) -> None:
    """Returns when these files are on disk, with their names and those of the folders that they are in."""
    files = [folder / path for path in paths]
    around = {parent for file in files for parent in file.parents if parent.is_relative_to(folder)}
    sync_all([*files, *sorted(around)])


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
    """SHA-256 of every file that is there, for the closing; all are on disk when this returns.

    Args:
        folder: The run's.
        posted: What rounds cover: round and SHA-256 by path. These files are not read again.
    """
    paths = all_files(folder)
    sync_with_folders(folder, (path for path in paths if path not in posted))
    return {path: posted[path][1] if path in posted else file_digest(folder / path) for path in paths}


def read_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that evidence covers, by path; a file that goes meanwhile is left out."""
    found = {}
    for path in all_files(folder):
        with suppress(FileNotFoundError):
            found[path] = file_digest(folder / path)
    return found


def file_findings(
    digests: Mapping[str, str], posted: Mapping[str, tuple[int, str]], until: int
) -> Iterator[str]:
    """Differences between the files of a run and what its rounds posted, while nobody is at work on it.

    Args:
        digests: SHA-256 of every file that is there.
        posted: Every file that rounds wrote: the last of these rounds, and its SHA-256.
        until: The last round with a checkpoint. Later ones are played again if the run goes on.
    """
    there = {path for path in digests if path.startswith(ROUND_FOLDERS)}
    for path in sorted(there | _needed(posted, until)):
        if path not in posted:
            if _round_of(path) <= until:
                yield f"{path} is not a file that the run wrote"
            continue
        round, digest = posted[path]
        if path not in there:
            yield f"{path} is missing, which round {round} wrote"
        elif round <= until and digests[path] != digest:
            yield f"{path} is not the file that round {round} wrote"


def checkpoint_findings(
    digests: Mapping[str, str], before: Mapping[str, tuple[int, str]], after: Mapping[str, tuple[int, str]]
) -> Iterator[str]:
    """Differences between checkpoints and what rounds posted, while the run may go on.

    A checkpoint that was posted is never written again. The newest one must be there, unless a newer one
    was posted while the folder was read.

    Args:
        digests: SHA-256 of every file that was there.
        before: Every file that was posted before the folder was read: its round, and its SHA-256.
        after: The same, when it had been read.
    """
    for path, (round, digest) in before.items():
        if path.startswith(f"{CHECKPOINTS}/") and digests.get(path, digest) != digest:
            yield f"{path} is not the file that round {round} wrote"
    for path in sorted(_newest_checkpoint(before) & _newest_checkpoint(after)):
        if path not in digests:
            yield f"{path} is missing, which round {after[path][0]} wrote"


def _newest_checkpoint(posted: Mapping[str, tuple[int, str]]) -> set[str]:
    """The files of the newest checkpoint; all of them are posted with its round."""
    rounds = {path: round for path, (round, _) in posted.items() if path.startswith(f"{CHECKPOINTS}/")}
    newest = max(rounds.values(), default=-1)
    return {path for path, round in rounds.items() if round == newest}


def _needed(posted: Mapping[str, tuple[int, str]], until: int) -> set[str]:
    """The files of the newest checkpoint, and the newest file of each client, up to a round.

    Older ones may be gone.
    """
    newest: dict[str, tuple[int, str]] = {}
    for path in posted:
        parent, round = path.rpartition("/")[0], _round_of(path)
        if parent != CHECKPOINTS and round <= until:
            newest[parent] = max(newest.get(parent, (-1, "")), (round, path))
    committed = {path: written for path, written in posted.items() if written[0] <= until}
    return {path for _, path in newest.values()} | _newest_checkpoint(committed)


def _round_of(path: str) -> int:
    """The round in the name of a file that a round wrote; −1 if there is none."""
    version = version_of(PurePosixPath(path).name.rpartition("-")[2])
    return -1 if version is None else version
