"""The files of a run: `summary.json`, `metrics.jsonl` (a line a round), `model/*.safetensors`.

`offer.safetensors` is what the server would send to a new client, for `ipfl personalize`; `predictors/` what
clients predict with, if their data cannot be found again; `run.db` the store with the ledger;
`checkpoint/`, `memory/` and `client_models/` what a resumed run starts from.

Everything in `metrics.jsonl` and `model/` depends on config and
seed alone, so equal runs give equal bytes; times are in `summary.json` only.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ipfl.core import Vector
from ipfl.engines import ATTEMPTS_FILE
from ipfl.errors import InputError
from ipfl.keep.file_names import (
    CHECKPOINTS,
    CLIENT_MODELS,
    MANIFEST_FILE,
    MEMORY,
    METRICS_FILE,
    OFFER_FILE,
    PREDICTORS,
    PRIVACY,
    SERVER_MODELS,
    SUMMARY_FILE,
)
from ipfl.ledger.database import STORE_FILE
from ipfl.system.files import (
    append,
    atomic_write,
    make_folder,
    read_text,
    remove,
    remove_drafts,
    remove_folder,
    write_json,
    write_text,
)
from ipfl.system.folder_lock import FolderLock
from ipfl.training.network import Network

OWN_FOLDERS = (SERVER_MODELS, MEMORY, PRIVACY, CLIENT_MODELS, CHECKPOINTS, PREDICTORS)
"""Folders of a run in which it removes what it does not need any more."""


def is_on_nodes(folder: Path) -> bool:
    """Whether a run was begun on deployed nodes, which hold its data and what clients remember."""
    try:
        return bool(json.loads(read_text(folder / ATTEMPTS_FILE)).get("deployed"))
    except (OSError, ValueError):
        return False


def check_folder_path(path: Path) -> Path:
    """The path of a folder for results.

    Raises:
        InputError: There can be no such folder.
    """
    try:
        path.resolve()  # null characters
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file, not a folder for results")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{str(path)!r:.80} cannot be a folder for results: {reason}") from error
    return path


def holds_run(folder: Path) -> bool:
    """Whether a run was begun in a folder. One that died while its store was made never was."""
    metrics = folder / METRICS_FILE
    if (folder / SUMMARY_FILE).exists() or (metrics.is_file() and metrics.stat().st_size):
        return True
    file = folder / STORE_FILE
    if not file.is_file() or not file.stat().st_size:
        return file.exists() and not file.is_file()
    try:
        with closing(sqlite3.connect(file, timeout=1.0)) as database:
            return bool(database.execute("SELECT count(*) FROM run").fetchone()[0])
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except sqlite3.DatabaseError:  # not a database: nothing of ours, and nothing to write over
        return True


def planned_rounds(folder: Path) -> int:
    """How many rounds the run was to have when it last ended in order; 0 if it never did."""
    try:
        return int(json.loads(read_text(folder / SUMMARY_FILE))["config"]["rounds"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


@dataclass(frozen=True)
class RunOutput:
    """Where a run is kept, and how it is begun there."""

    path: Path | str
    """Its folder."""
    overwrite: bool = False
    """Replace a run that the folder holds."""
    resume: bool = False
    """Go on with the run that the folder holds; everything else must be as it was, but there may be more
    rounds. The result is the same to the last bit as without the interruption."""
    signing_key: Path | None = None
    """File with the key that signs the ledger, made if it is missing; None: `signing.key` beside `path`."""
    accounts: str | None = None
    """Name under which balances outlive runs: this one opens with what the last left; None: they do not."""
    keep_models: bool = True
    """Of data of one's own: keep what every client predicts with, for when the data is not there."""


class RunFolder:
    """Writes one run. Refuses a folder that holds a run already, unless told to overwrite it.

    Whatever refuses to start leaves an earlier run as it is. A process that dies while it starts leaves a
    folder that counts as empty, or an earlier run that only `overwrite` can replace.
    """

    def __init__(self, output: RunOutput):
        self.path = check_folder_path(Path(output.path))
        self.memory, self.checkpoints = self.path / MEMORY, self.path / CHECKPOINTS
        self.client_models, self.predictors = self.path / CLIENT_MODELS, self.path / PREDICTORS
        self.overwrite = output.overwrite
        self._lock: FolderLock | None = None
        if not (output.overwrite or output.resume):
            self._check_empty()

    def _check_empty(self) -> None:
        if holds_run(self.path):
            raise InputError(
                f"{self.path} already holds a run: overwrite it, resume it, or choose another folder"
            )

    def lock(self) -> None:
        """Keeps other processes out until `release`.

        Raises:
            InputError: Another process is at work here, or nothing can be written.
        """
        if not os.access(self.path, os.W_OK):
            is_read_only = os.statvfs(self.path).f_flag & os.ST_RDONLY
            why = os.strerror(errno.EROFS if is_read_only else errno.EACCES)
            raise InputError(f"cannot write results to {self.path}: {why}")
        self._lock = FolderLock(self.path)

    def refuse_links(self) -> None:
        """Refuses a folder of the run that is a link: what lies elsewhere is not the run's to remove.

        Raises:
            InputError: One is, and the folder may come from somebody else.
        """
        for folder in (self.path / name for name in OWN_FOLDERS):
            inside = folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()
            for path in (folder, *inside):
                if path.is_symlink() and path.is_dir():
                    raise InputError(f"{path} is a link to a folder elsewhere, not a folder of the run")

    def release(self) -> None:
        """Lets other processes in."""
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Locks the folder for a new run; if that cannot begin, folders that were made for it go again."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            make_folder(self.path)
            self.lock()
            if not self.overwrite:
                self._check_empty()  # another process may have begun one since
            yield
        except Exception as error:
            with suppress(OSError):
                for folder in missing:
                    folder.rmdir()
            if isinstance(error, OSError):
                raise InputError(f"cannot write results to {self.path}: {error.strerror}") from error
            raise

    def remove_store(self) -> None:
        """Removes what an earlier run was; the database's log first: it would be taken for the next one's."""
        for old in (f"{STORE_FILE}-wal", f"{STORE_FILE}-shm", STORE_FILE, ATTEMPTS_FILE):
            remove(self.path / old)

    def clear(self) -> None:
        """Removes what rounds have left; for a run of which no round was committed."""
        for folder in OWN_FOLDERS:
            if (self.path / folder).exists():
                remove_folder(self.path / folder)
        for old in (MANIFEST_FILE, SUMMARY_FILE, OFFER_FILE):
            remove(self.path / old)
        self.rewrite(())

    def tidy(self) -> None:
        """Removes what a process that died has left half-written."""
        for folder in (self.path, self.path / SERVER_MODELS):
            remove_drafts(folder)

    def earlier_seconds(self, figure: str) -> float | None:
        """What the summary of an earlier process says of its time; None if that did not end in order."""
        try:
            return float(json.loads(read_text(self.path / SUMMARY_FILE))[figure])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def rewrite(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Makes `metrics.jsonl` say these rounds and no others."""
        write_text(self.path / METRICS_FILE, "".join(map(line_text, lines)))

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Appends one round to `metrics.jsonl`."""
        append(self.path / METRICS_FILE, line_text(line).encode())

    def write_models(self, models: Mapping[str, Vector], network: Network) -> None:
        """Writes every server model with the tensor names and shapes of its module."""
        folder = self.path / SERVER_MODELS
        make_folder(folder)
        files = {folder / f"{name}.safetensors": vector for name, vector in models.items()}
        for old in set(folder.iterdir()) - set(files):
            remove(old)
        for path, vector in files.items():
            with atomic_write(path) as draft:
                draft.write_bytes(save(network.state_dict(vector)))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json` whole or not at all."""
        write_json(self.path / SUMMARY_FILE, summary)


def line_text(line: Mapping[str, Any]) -> str:
    """A line of `metrics.jsonl`: the round first, then all in order, so that equal lines are equal bytes."""
    rest = json.dumps(
        {key: value for key, value in line.items() if key != "round"}, sort_keys=True, default=list
    )
    return f'{{"round": {line["round"]}, {rest[1:]}\n'
