"""What clients remember between rounds, on disk: a client that is not at work costs no memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ipfl.core import EMPTY, ClientId, Record
from ipfl.errors import InputError


class ClientMemory:
    """One safetensors file per client that has something to remember; replaced atomically."""

    def __init__(self, folder: Path):
        self.folder = folder

    def _file(self, client: ClientId) -> Path:
        return self.folder / f"client-{client}.safetensors"

    def load(self, client: ClientId) -> Record:
        """What the client remembers; empty for one that never kept anything."""
        path = self._file(client)
        if not path.exists():
            return EMPTY
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads((file.metadata() or {}).get("facts", "{}"))
                return Record({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118 - no dict
        except (SafetensorError, json.JSONDecodeError) as error:
            raise InputError(f"client memory {path} cannot be read: {error}") from error

    def save(self, client: ClientId, record: Record) -> None:
        """Replaces what the client remembers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._file(client)
        draft = path.with_suffix(".draft")
        save_file(dict(record.params), draft, metadata={"facts": json.dumps(dict(record.facts))})
        os.replace(draft, path)
