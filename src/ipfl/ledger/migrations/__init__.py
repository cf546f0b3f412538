"""The database's schema, step by step (alembic), and how a store is brought up to date."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect

from ipfl.errors import InputError
from ipfl.ledger.database import display_url, read_only

SCHEMA_LOCK = 7_106_117
"""Number of the PostgreSQL lock under which the schema is changed; any number will do, if all use it."""


VERSION_TABLE = "ipfl_schema"
"""Where alembic keeps the number: not under its usual name, which another program may use here."""


def config() -> Config:
    """Alembic's settings: only where the migrations are."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return settings


def revision(connection: Connection) -> str | None:
    """The newest migration that the database has seen; None for a database without a store."""
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return found.get_current_revision()


def upgrade(engine: Engine) -> None:
    """Brings the database up to date, all steps or none; does nothing if it is.

    Raises:
        InputError: The database was written by a newer release.
    """
    settings = config()
    script = ScriptDirectory.from_config(settings)
    with engine.connect() as connection:
        try:
            current = revision(read_only(connection))
        except CommandError as error:  # more than one number
            raise InputError(f"{display_url(engine.url)} is not a run store: {error}") from error
    if current == script.get_current_head():
        return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
        settings.attributes["connection"] = connection
        try:
            command.upgrade(settings, "head")
        except CommandError as error:
            raise InputError(
                f"{display_url(engine.url)} was written by a newer release of ipfl (schema {current}); update ipfl"
            ) from error


def holds_store(engine: Engine) -> bool:
    """Whether there is a run store in the database at all."""
    with engine.connect() as connection:
        return inspect(read_only(connection)).has_table(VERSION_TABLE)
