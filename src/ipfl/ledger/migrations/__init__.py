"""Migrations of the database's schema (alembic): which one a store has, and its upgrade to the newest."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, inspect

from ipfl.errors import InputError
from ipfl.ledger.database import display_url, read_only

SCHEMA_LOCK = 7_106_117
"""Number of the PostgreSQL lock that is held while the schema changes; an arbitrary number."""
VERSION_TABLE = "ipfl_schema"
"""Table in which alembic keeps the revision. Its usual name may be in use by another program."""


def alembic_config() -> Config:
    """Alembic's settings: the folder of the migrations."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return settings


@cache
def newest_revision() -> str | None:
    """The newest migration that there is. To find it, alembic runs the files of all of them."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


@cache
def readable_revisions() -> frozenset[str]:
    """The revisions whose tables have the columns of the newest one: they can be read as they are."""
    return _with_the_same_columns(ScriptDirectory.from_config(alembic_config()).walk_revisions())


def _with_the_same_columns(newest_first: Iterable[Script]) -> frozenset[str]:
    """The newest revision, and those before it up to a migration that changes columns.

    A migration that does not says so itself (`CHANGES_COLUMNS = False`), so that a new one is safe by
    default.
    """
    found: set[str] = set()
    for script in newest_first:
        found.add(script.revision)
        if getattr(script.module, "CHANGES_COLUMNS", True):
            break
    return frozenset(found)


def current_revision(connection: Connection) -> str | None:
    """The newest migration that was applied to the database; None for a database without a store."""
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return found.get_current_revision()


def upgrade(engine: Engine) -> None:
    """Applies all migrations that the database lacks, in one transaction; does nothing if there are none.

    Raises:
        InputError: The database was written by a newer release.
    """
    with engine.connect() as connection:
        try:
            current = current_revision(read_only(connection))
        except CommandError as error:  # more than one revision
            raise InputError(f"{display_url(engine.url)} is not a run store: {error}") from error
    if current == newest_revision():
        return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
        elif not inspect(connection).get_table_names():
            for statement in _statements_of_an_empty_store():
                connection.exec_driver_sql(statement)
            return
        try:
            _migrate(connection)
        except CommandError as error:
            text = f"was written by a newer release of ipfl (schema {current}); update ipfl"
            raise InputError(f"{display_url(engine.url)} {text}") from error


def _migrate(connection: Connection) -> None:
    """Applies the migrations in the transaction of this connection."""
    settings = alembic_config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")


@cache
def _statements_of_an_empty_store() -> tuple[str, ...]:
    """What all migrations together make of an empty SQLite database; alembic takes ten times as long."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        _migrate(connection)
        made = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite!_%' ESCAPE '!' "
            "ORDER BY rowid"
        ).scalars()
        version = f"INSERT INTO {VERSION_TABLE} VALUES ('{current_revision(connection)}')"
        return (*made, version)


def check_revision(engine: Engine) -> None:
    """Refuses a database whose tables are not those that are known here; changes nothing.

    Raises:
        InputError: It was written by another release.
    """
    with engine.connect() as connection:
        try:
            current = current_revision(read_only(connection))
        except CommandError as error:  # more than one revision
            raise InputError(f"{display_url(engine.url)} is not a run store: {error}") from error
    if current not in readable_revisions():
        text = f"was written by another release of ipfl (schema {current}); `ipfl ledger show` updates it"
        raise InputError(f"{display_url(engine.url)} {text}")


def holds_store(engine: Engine) -> bool:
    """Whether there is a run store in the database at all."""
    with engine.connect() as connection:
        return inspect(read_only(connection)).has_table(VERSION_TABLE)
