"""Databases of run stores: addresses, engines, retries, and database errors as messages for users.

An address is a run's folder (`DIR/run.db`, SQLite), a database file, or a URL. No connection is kept open
between transactions, so that worker processes inherit none and a restarted server leaves none stale.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

from ipfl.errors import InputError
from ipfl.system.retry import retry

T = TypeVar("T")

STORE_FILE = "run.db"
"""Name of the store in a run's folder."""
LOCK_SECONDS = 1.0
"""How long SQLite itself waits for a lock before it reports an error."""
PASSWORD_MASK = "***"
"""Stands for a password in messages."""
PUBLIC_OPTIONS = ("host", "port", "user", "dbname")
"""Options of a URL that messages may show; any other may be a password."""


class StoreError(InputError):
    """The run store refuses, is full, or cannot be read or reached. Nothing of the transaction was kept."""


def parse_address(address: str | Path) -> URL:
    """The URL of a store, given a run's folder, a database file or a URL."""
    if "\0" in str(address):
        raise InputError("the store's address holds a null character")
    if isinstance(address, Path) or "://" not in address:
        if re.match(r"(postgres|sqlite)\w*(\+\w+)?:", str(address)):
            raise _unreadable_url()
        path = Path(address)
        file = path if path.suffix == ".db" and not path.is_dir() else path / STORE_FILE
        return URL.create("sqlite", database=str(file))
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise _unreadable_url() from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise InputError(f"a store is sqlite:// or postgresql+psycopg://, not {url.drivername}://")
    if url.drivername == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InputError("a store in memory would be lost; give a file: sqlite:///FILE.db")
        if url != URL.create("sqlite", database=url.database):
            raise InputError("a store in a file has no host, user or options: sqlite:///FILE.db")
    elif "@" in f"{url.host}{url.database}":  # the end of a password
        raise InputError("the store's URL has an @ too many; within a password, write %40 for it")
    return url


def _unreadable_url() -> InputError:
    # Without the text: it may hold a password.
    return InputError("the store's URL cannot be read; expected postgresql+psycopg://USER@HOST/NAME")


def display_url(url: URL) -> str:
    """An address for messages: a file's path, or the URL without password and options."""
    if url.drivername == "sqlite":
        return str(url.database)
    return url.set(query={}).render_as_string(hide_password=True)


def _secrets(url: URL) -> list[str]:
    """Parts of a URL that must not be shown, the longest first, as one may be part of another."""
    options = [
        value for key, values in url.normalized_query.items() if key not in PUBLIC_OPTIONS for value in values
    ]
    return sorted(filter(None, [str(url.password or ""), *options]), key=len, reverse=True)


def make_engine(url: URL) -> Engine:
    """An engine with the settings that the store relies on."""
    if url.drivername != "sqlite":
        try:
            return create_engine(url, poolclass=NullPool)
        except ModuleNotFoundError as error:
            raise InputError('a store in PostgreSQL needs a driver: pip install "ipfl[postgres]"') from error
        except (ArgumentError, TypeError, ValueError):  # without its text, which may hold a password
            raise InputError(f"the options in the URL of {display_url(url)} cannot be used") from None
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": LOCK_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def make_read_only_engine(url: URL) -> Engine:
    """An engine whose connections cannot write, whatever is asked of them."""
    if url.drivername != "sqlite":
        engine = make_engine(url)
        event.listen(engine, "connect", _refuse_writing)
        return engine
    path = Path(str(url.database)).resolve()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.as_uri()}?{_read_only_mode(path)}",
            uri=True,
            timeout=LOCK_SECONDS,
            check_same_thread=False,
        )
        connection.isolation_level = None  # as in `_prepare_sqlite`
        connection.execute("PRAGMA query_only = ON")
        return connection

    engine = create_engine(url, poolclass=NullPool, creator=connect)
    event.listen(engine, "begin", _begin_read_only)
    return engine


def is_writable(url: URL) -> bool:
    """Whether a store can be written to: its file and its folder can, or it is on a server."""
    if url.drivername != "sqlite":
        return True
    path = Path(str(url.database)).resolve()
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


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


def _refuse_writing(connection: Any, _: Any) -> None:
    connection.read_only = True


def _begin_read_only(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own: `_begin_sqlite` does
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its lock at once: upgrading a read lock later could not wait for another writer.
    is_read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")


def read_only(connection: Connection) -> Connection:
    """The connection, set to read the database as of one moment and to write nothing."""
    if connection.dialect.name == "sqlite":
        return connection.execution_options(read_only=True)
    return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def copy_rows(connection: Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Sends rows to PostgreSQL by a COPY statement, with the errors of any other statement."""
    driver: Any = connection.connection.driver_connection
    dialect: Any = connection.dialect
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except dialect.dbapi.Error as error:
        raise DBAPIError.instance(statement, None, error, dialect.dbapi.Error, dialect=dialect) from error


def is_temporary(error: DBAPIError) -> bool:
    """Whether the same transaction may succeed in a moment: locked, restarting, full, connection lost."""
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        # The low byte is the primary code: SQLITE_BUSY_SNAPSHOT and its like are busy too.
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,  # the file system cannot be reached, or is full without SQLite knowing it
        )
    state = _sqlstate(error)
    if state is None:  # no answer from a server at all
        return type(error.orig).__name__ == "OperationalError"
    # 08 connection lost, 57P administrator's shutdown or start-up, 40 deadlock, 53100 disk full,
    # 53300 too many connections
    return state.startswith(("08", "57P", "40")) or state in ("53100", "53300")


def _sqlstate(error: DBAPIError) -> str | None:
    """The SQLSTATE code of a server's error; None if it sent none."""
    state = getattr(error.orig, "sqlstate", None)
    return None if state is None else str(state)


def explain(error: DBAPIError, url: URL, purpose: str) -> StoreError:
    """The error as one line without statement, parameters and password."""
    reason = (str(error.orig).strip().splitlines() or ["no answer"])[0]
    for secret in _secrets(url):
        reason = reason.replace(secret, PASSWORD_MASK)
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or _sqlstate(error) == "53100":
        return StoreError(
            f"{purpose}: the disk of {display_url(url)} is full; nothing of it was kept ({reason})"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{purpose}: {display_url(url)} is not a run store")
    what = "refused by" if isinstance(error, IntegrityError) else "failed in"
    return StoreError(f"{purpose}: {what} {display_url(url)}: {reason}")


def transact(work: Callable[[], T], url: URL, purpose: str, retry_seconds: float | None) -> T:
    """Does a transaction, and repeats it while the database cannot be reached.

    Args:
        work: The whole transaction; it may be done more than once.
        url: The database.
        purpose: The beginning of the error message, such as `cannot post round 3`.
        retry_seconds: How long it is repeated at most; None for the default of `retry`.

    Raises:
        StoreError: The error of the database, on one line.
    """
    try:
        return retry(
            work,
            lambda error: isinstance(error, DBAPIError) and is_temporary(error),
            lambda error: str(explain(error, url, purpose)) if isinstance(error, DBAPIError) else str(error),
            retry_seconds,
        )
    except DBAPIError as error:
        raise explain(error, url, purpose) from None
