"""A shared-memory file through which two processes hand each other parameter vectors.

It has no name, so there is nothing to clean up if a process dies; it is inherited by fork, and grows.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping

import numpy as np

from ipfl.core import Vector

VectorPlaces = dict[str, tuple[int, int]]
"""Where each named vector is: (first float, number of floats)."""

MAX_HELD_BYTES = 64 * 2**20
"""Vectors kept for later records of the same phase; with more, the box is filled from its start again."""


def _nameless_file() -> int:
    """A file that lives in memory (where the system knows memfd) and ends with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ipfl")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Mailbox:
    """One direction of traffic; one side writes, the other reads."""

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._map: mmap.mmap | None = None
        self._end = 0
        self._held: dict[int, tuple[Vector, int]] = {}

    def clear(self) -> None:
        """Forgets what it holds; the next vectors go to the start."""
        self._end = 0
        self._held.clear()

    def put(self, vectors: Mapping[str, Vector]) -> VectorPlaces:
        """Writes the vectors, each object once since the last `clear`, and says where they are."""
        fresh = {id(vector): vector for vector in vectors.values() if id(vector) not in self._held}
        need = sum(vector.nbytes for vector in fresh.values())
        if self._held and self._end * 4 + need > MAX_HELD_BYTES:
            self.clear()
            fresh = {id(vector): vector for vector in vectors.values()}
            need = sum(vector.nbytes for vector in fresh.values())
        view = self._floats(self._end * 4 + need)
        for key, vector in fresh.items():
            view[self._end : self._end + len(vector)] = vector
            self._held[key] = (vector, self._end)  # the vector too: a freed one's id could come again
            self._end += len(vector)
        return {name: (self._held[id(vector)][1], len(vector)) for name, vector in vectors.items()}

    def get(self, places: VectorPlaces) -> dict[str, Vector]:
        """Read-only views of the vectors at those places, valid until the writer writes again."""
        if not places:
            return {}
        view = self._floats(4 * max(start + length for start, length in places.values()))
        view.flags.writeable = False
        return {name: view[start : start + length] for name, (start, length) in places.items()}

    def _floats(self, nbytes: int) -> Vector:
        if self._map is None or len(self._map) < nbytes:
            if os.fstat(self._file).st_size < nbytes:
                os.ftruncate(self._file, nbytes)
            size = os.fstat(self._file).st_size
            self._map = mmap.mmap(self._file, size) if size else None
        if self._map is None:
            return np.empty(0, dtype=np.float32)
        return np.frombuffer(self._map, dtype=np.float32)

    def close(self) -> None:
        """Frees the memory."""
        self._map = None
        os.close(self._file)
