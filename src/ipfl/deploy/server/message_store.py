"""Flower's database of messages on the server: for its owner only, and emptied at every start.

A SuperLink keeps messages until they are fetched, and their arrays with them: what clients sent that nobody
fetched any more, such as replies that came too late, would stay for good. Registered nodes and runs stay.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ipfl.engines.flower.flwr_internals import MESSAGE_TABLES
from ipfl.errors import InputError

OWNER_ONLY = 0o600
"""Mode of a file that only its owner may read and write."""


def clean_message_store(database: Path) -> None:
    """Removes all messages, gives their space back, and closes the file to others.

    No SuperLink may be running. A database that is not there yet is made, empty, with the right mode.

    Raises:
        InputError: The file is not a database.
    """
    database.touch(mode=OWNER_ONLY)
    database.chmod(OWNER_ONLY)
    try:
        with closing(sqlite3.connect(database)) as connection:
            known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            with connection:
                for table in MESSAGE_TABLES:
                    if table in known:
                        connection.execute(f"DELETE FROM {table}")
            connection.execute("VACUUM")
    except sqlite3.DatabaseError as error:
        raise InputError(f"{database} cannot be used: {error}") from error
