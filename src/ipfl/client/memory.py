"""What clients remember between rounds, on disk: a client that is not at work costs no memory.

Every round in which a client's memory changes makes a file of its own, so that a round that was not committed
can be rolled back: a resumed run never sees memory from a round that is to be played again.
"""

from __future__ import annotations

import os
from pathlib import Path

from ipfl.core import EMPTY, ClientId, Record
from ipfl.system.files import (
    RECORD_SUFFIX,
    make_folder,
    read_record,
    remove,
    remove_drafts,
    write_record,
)


class ClientMemory:
    """A folder per client that has something to remember, a file per round that changed it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.committed = -1
        """The last round that will never be played again; what it left is kept until a later one is
        committed, everything older goes."""

    def _versions(self, client: ClientId) -> list[int]:
        """Rounds of which there is a file, ascending."""
        try:
            names = os.listdir(f"{self.folder}/{client}")  # a `Path` takes twice as long
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(RECORD_SUFFIX) for name in names if name.endswith(RECORD_SUFFIX))
        return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())

    def _file(self, client: ClientId, round: int) -> Path:
        return self.folder / str(client) / f"{round}{RECORD_SUFFIX}"

    def load(self, client: ClientId, round: int | None = None) -> Record:
        """What the client remembers, or what it kept in one round; empty if it never kept anything."""
        if round is not None:
            return read_record(self._file(client, round))
        versions = self._versions(client)
        return read_record(self._file(client, versions[-1])) if versions else EMPTY

    def save(self, client: ClientId, record: Record, round: int) -> None:
        """Replaces what the client remembers, from the running round on."""
        make_folder(self.folder / str(client))
        write_record(self._file(client, round), record)
        committed = [version for version in self._versions(client) if version <= self.committed]
        for version in committed[:-1]:
            remove(self._file(client, version))

    def forget_after(self, round: int, client: ClientId | None = None) -> None:
        """Removes what rounds after this one left with one client, or with all."""
        if client is None:
            names = [folder.name for folder in self.folder.iterdir()] if self.folder.exists() else []
            for name in names:
                if name.isascii() and name.isdigit():  # others are no client's
                    self.forget_after(round, int(name))
            return
        for version in self._versions(client):
            if version > round:
                remove(self._file(client, version))
        remove_drafts(self.folder / str(client))
