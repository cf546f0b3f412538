"""What clients remember between rounds, on disk: a client that is not at work costs no memory."""

from __future__ import annotations

from pathlib import Path

from ipfl.core import EMPTY, ClientId, Record
from ipfl.records import read_record, write_record


class ClientMemory:
    """One file per client that has something to remember; replaced atomically."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _file(self, client: ClientId) -> Path:
        return self.folder / f"client-{client}.safetensors"

    def load(self, client: ClientId) -> Record:
        """What the client remembers; empty for one that never kept anything."""
        path = self._file(client)
        return read_record(path) if path.exists() else EMPTY

    def save(self, client: ClientId, record: Record) -> None:
        """Replaces what the client remembers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_record(self._file(client), record)
