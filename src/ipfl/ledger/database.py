"""The SQLite file of a run: how it is opened, and its errors as messages for users.

No connection is kept open between transactions, so that worker processes inherit none.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ipfl.errors import InputError

STORE_FILE = "run.db"
"""Name of the store in a run's folder."""
LOCK_SECONDS = 30.0
"""Seconds that a writer waits for another one's lock."""


class StoreError(InputError):
    """The run store refuses, is full, or cannot be read. Nothing of the transaction was kept."""


def store_file(place: str | Path) -> Path:
    """The file of a store, given itself or the folder of its run."""
    if "\0" in str(place):
        raise InputError("the name of a run's folder holds a null character")
    path = Path(place)
    return path if path.suffix == ".db" and not path.is_dir() else path / STORE_FILE


@contextmanager
def writing(file: Path) -> Iterator[sqlite3.Connection]:
    """A transaction that is kept as a whole, or not at all. There is one writer at a time."""
    with closing(sqlite3.connect(file, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")  # so that readers see the file as it was
        # Its lock at once: upgrading a read lock later could not wait for another writer.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            yield connection


@contextmanager
def reading(file: Path) -> Iterator[sqlite3.Connection]:
    """A transaction that sees one moment, through a connection that cannot write."""
    path = file.resolve()
    address = f"{path.as_uri()}?{_read_only_mode(path)}"
    # The console may read the beginning of an answer in one thread, and its end in another.
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    with closing(connection):
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield connection


def _read_only_mode(path: Path) -> str:
    """How SQLite opens a file that is only read.

    Readers share locks in files beside it, which SQLite makes and removes. Where it cannot make them, nobody
    writes either; a log that a killed process left is read with the file, if all of it is there.
    """
    if os.access(path.parent, os.W_OK):
        return "mode=rw" if os.access(path, os.W_OK) else "mode=ro"
    log, index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if not log.exists() or not log.stat().st_size:
        return "mode=ro&immutable=1"
    if not index.exists():
        raise StoreError(
            f"{path} was left by a process that was killed, and can only be read where its folder can be "
            "written: copy the folder, with all files"
        )
    return "mode=ro"


@contextmanager
def explained(file: Path, purpose: str) -> Iterator[None]:
    """Inside, SQLite's errors become a `StoreError` of one line.

    Args:
        file: The store.
        purpose: The beginning of the message, such as `cannot post round 3`.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a message about damaged text
        code = getattr(error, "sqlite_errorcode", 0)
        reason = str(error).partition("\n")[0]
        what = f"failed in {file}: {reason}"
        if code == sqlite3.SQLITE_FULL:
            what = f"the disk of {file} is full; nothing of it was kept ({reason})"
        elif code == sqlite3.SQLITE_NOTADB:
            what = f"{file} is not a run store"
        elif isinstance(error, sqlite3.IntegrityError):
            what = f"refused by {file}: {reason}"
        raise StoreError(f"{purpose}: {what}") from None
