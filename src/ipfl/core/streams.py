"""Random streams: the only source of randomness, the same on every engine and worker."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """A random stream of its own for every (seed, path).

    `stream(seed, "train", round, client)`: words are hashed, so no two paths meet by accident.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part % 2**32 for part in path]
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(words)))
