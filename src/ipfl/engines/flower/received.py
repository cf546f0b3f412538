"""What a node keeps of the arrays it was sent, so that the server can refer to them by digest.

Both sides follow one rule: an array is kept as long as one of the client's last `KEPT` asks named it. So the
server knows what a node holds without being told; where it is wrong (a node lost its disk), the node says
what it misses and is sent everything.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ipfl.engines.flower.messages import Blob, Blobs, digest

KEPT = 4
"""Asks whose arrays are kept: preference, train, appraise, evaluate are the phases of the longest round."""
INDEX = "index.json"


class Held:
    """Digests that the last asks named."""

    def __init__(self, asks: Iterable[Iterable[str]] = ()):
        self.asks: deque[frozenset[str]] = deque(map(frozenset, asks), maxlen=KEPT)

    def note(self, named: Iterable[str]) -> None:
        """One more ask has been taken."""
        self.asks.append(frozenset(named))

    def __contains__(self, key: str) -> bool:
        return any(key in ask for ask in self.asks)


class Received:
    """The arrays of one client, a file each. A broken or missing file is an array that is not there."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find(self, keys: Iterable[str]) -> dict[str, Blob]:
        """Those of the arrays that are there and whole."""
        found = {}
        for key in keys:
            try:
                blob = load_file(self.folder / key)["array"]
            except (OSError, SafetensorError, KeyError):
                continue
            if digest(blob) == key:
                found[key] = blob
        return found

    def keep(self, blobs: Blobs) -> None:
        """Notes an ask that named these arrays, keeps them, and lets go of what is too old."""
        held = self._held()
        held.note(blobs)
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{os.getpid()}.draft"
        for key, blob in blobs.items():
            if not (self.folder / key).exists():
                save_file({"array": blob}, draft)
                os.replace(draft, self.folder / key)
        draft.write_text(json.dumps([sorted(ask) for ask in held.asks]))
        os.replace(draft, self.folder / INDEX)
        for path in self.folder.iterdir():
            if path.name != INDEX and path.suffix != ".draft" and path.name not in held:
                path.unlink(missing_ok=True)

    def _held(self) -> Held:
        try:
            return Held(json.loads((self.folder / INDEX).read_text()))
        except (OSError, json.JSONDecodeError):
            return Held()
