"""The files of a run and their SHA-256: which ones a round wrote, and which are there when the run has ended.

A round's hash covers its checkpoint and what it left in `memory/` and `client_models/`. `manifest.json`,
written when the run ends, has all files, and is signed: what is not a round's is compared with it.
`metrics.jsonl` repeats the lines of the store, and is compared with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from ipfl.errors import InputError
from ipfl.keep.checkpoint import file_digest
from ipfl.keep.file_names import (
    CHECKPOINTS,
    CLIENT_MODELS,
    EXPORTS,
    MANIFEST_FILE,
    MEMORY,
    METRICS_FILE,
    OFFER_FILE,
    SUMMARY_FILE,
)
from ipfl.ledger.database import STORE_FILE
from ipfl.ledger.signing import RoundHead
from ipfl.ledger.store import RunStore
from ipfl.system.files import DRAFT_SUFFIX, RECORD_SUFFIX, read_json, sync_all, write_json

MEMORIES = (MEMORY, CLIENT_MODELS)
"""Folders with a folder per client and a file per round."""
ROUND_FOLDERS = tuple(f"{name}/" for name in (CHECKPOINTS, *MEMORIES))
"""What paths of files that rounds write begin with."""
NOT_COVERED = (MANIFEST_FILE, METRICS_FILE)
"""Files that no hash covers, nor the store, which has hashes of its own, and the lines of the rounds."""

Posted = Mapping[str, tuple[int, str]]
"""Every file that rounds wrote, by path: the last of these rounds, and its SHA-256 (`Reader.files`)."""


class Manifest(RoundHead):
    """The files of a run that has ended, after its last round."""

    ipfl: str = "manifest"
    files: dict[str, str]
    """SHA-256 by path in the run's folder."""


def write_manifest(folder: Path, store: RunStore) -> None:
    """Writes which files are there; all are on disk when this returns."""
    with store.snapshot() as reader:
        posted, last = reader.files(), reader.last()
    paths = covered_files(folder)
    _sync_with_folders(folder, (path for path in paths if path not in posted))
    # What rounds cover is not read again: only their own hashes count for these files.
    files = {path: posted[path][1] if path in posted else file_digest(folder / path) for path in paths}
    round, hash = (-1, store.begun) if last is None else (last.round, last.hash)
    manifest = Manifest(begun=store.begun, round=round, hash=hash, files=files).signed(store.key)
    write_json(folder / MANIFEST_FILE, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest | None:
    """What the run wrote when it ended last; None: it never did.

    Raises:
        InputError: It is no manifest, or its signature is false.
    """
    if not (folder / MANIFEST_FILE).exists():
        return None
    try:
        return Manifest.parse(read_json(folder / MANIFEST_FILE, "manifest"))
    except InputError as error:
        raise InputError(f"{MANIFEST_FILE}: {error}") from error


class RoundFiles:
    """What rounds leave with clients and about them, in the run's folder.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._known: dict[str, tuple[int, int]] = {}

    def changed(self) -> dict[str, str]:
        """SHA-256 of every file that was written since the last call, by path.

        They are on disk when this returns. A client that was late leaves its file after its round: it counts
        to the next one.
        """
        seen = self._written()
        changed = sorted(path for path, state in seen.items() if self._known.get(path) != state)
        self._known = seen
        _sync_with_folders(self.folder, changed)
        return {path: file_digest(self.folder / path) for path in changed}

    def accept_until(self, round: int) -> None:
        """What rounds up to this one left is posted already."""
        self._known = {path: at for path, at in self._written().items() if _round_of(path) <= round}

    def _written(self) -> dict[str, tuple[int, int]]:
        """When files that rounds left with clients were written last, and their sizes, by path."""
        found = {}
        for name in MEMORIES:
            for root, _, files in os.walk(self.folder / name):
                for path in (f"{root}/{file}" for file in files if _version_of(file) is not None):
                    about = os.stat(path)
                    found[path[len(str(self.folder)) + 1 :]] = (about.st_mtime_ns, about.st_size)
        return found


def _sync_with_folders(folder: Path, paths: Iterable[str]) -> None:
    """Returns when these files are on disk, with their names and those of the folders that they are in."""
    files = [folder / path for path in paths]
    around = {parent for file in files for parent in file.parents if parent.is_relative_to(folder)}
    sync_all([*files, *sorted(around)])


def _version_of(name: str) -> int | None:
    """The round of a file of a client's memory; None for other files."""
    stem = name.removesuffix(RECORD_SUFFIX)
    return int(stem) if name.endswith(RECORD_SUFFIX) and stem.isascii() and stem.isdigit() else None


def _round_of(path: str) -> int:
    """The round in the name of a file that a round wrote; −1 if there is none."""
    version = _version_of(PurePosixPath(path).name.rpartition("-")[2])
    return -1 if version is None else version


def covered_files(folder: Path) -> list[str]:
    """Paths of all files of a run that a hash covers."""
    found = []
    for root, folders, names in os.walk(folder):
        if Path(root) == folder and EXPORTS in folders:
            folders.remove(EXPORTS)
        for name in names:
            path = PurePosixPath(Path(root, name).relative_to(folder).as_posix())
            is_store = path.name.startswith(STORE_FILE) and len(path.parts) == 1
            is_covered = not is_store and str(path) not in NOT_COVERED and path.suffix != DRAFT_SUFFIX
            if is_covered and Path(root, name).is_file():  # not a pipe, which would be waited for
                found.append(str(path))
    return sorted(found)


def digest_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that a hash covers, by path; a file that goes meanwhile is left out."""
    found = {}
    for path in covered_files(folder):
        with suppress(FileNotFoundError):
            found[path] = file_digest(folder / path)
    return found


def result_findings(digests: Mapping[str, str], manifest: Manifest) -> Iterator[tuple[str, str | None]]:
    """Differences between what the run wrote when it ended and its manifest, by path.

    None: it is a file of somebody else's, such as a figure.
    """
    there = {path: digest for path, digest in digests.items() if not path.startswith(ROUND_FOLDERS)}
    for path, digest in manifest.files.items():
        if path not in there and not path.startswith(ROUND_FOLDERS):
            yield path, f"{path} is missing, which the run wrote when it ended"
        elif there.get(path, digest) != digest:
            yield path, f"{path} is not the file that the run wrote when it ended"
    for path in sorted({*there} - {*manifest.files}):
        is_claimed = "/" in path or path in (SUMMARY_FILE, OFFER_FILE)
        yield path, f"{path} is not a file that the run wrote" if is_claimed else None


def round_findings(digests: Mapping[str, str], posted: Posted, until: int) -> Iterator[str]:
    """Differences between what rounds wrote, for the run to go on from, and what they posted.

    Args:
        digests: SHA-256 of every file that is there.
        posted: What rounds posted.
        until: The last round.
    """
    paths = {*digests} | _needed(posted, until)
    for path in sorted(path for path in paths if path.startswith(ROUND_FOLDERS)):
        round, digest = posted.get(path, (-1, ""))
        if path not in posted:
            if _round_of(path) <= until:
                yield f"{path} is not a file that the run wrote"
        elif path not in digests:
            yield f"{path} is missing, which round {round} wrote"
        elif round <= until and digests[path] != digest:
            yield f"{path} is not the file that round {round} wrote"


def _needed(posted: Posted, until: int) -> set[str]:
    """The files of the newest checkpoint, and each client's newest, up to a round; older ones may be gone."""
    newest: dict[str, tuple[int, str]] = {}
    for path in posted:
        parent, round = path.rpartition("/")[0], _round_of(path)
        if parent != CHECKPOINTS and round <= until:
            newest[parent] = max(newest.get(parent, (-1, "")), (round, path))
    # All files of a checkpoint are posted with its round.
    written = {path: round for path, (round, _) in posted.items() if path.startswith(f"{CHECKPOINTS}/")}
    last = max((round for round in written.values() if round <= until), default=-1)
    return {path for _, path in newest.values()} | {path for path, round in written.items() if round == last}
