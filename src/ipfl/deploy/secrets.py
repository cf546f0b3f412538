"""Files that only their owner may read, from their first moment on."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_secret(path: Path, content: bytes) -> None:
    """Writes a file of mode 0600 that is not there yet."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)


def fresh_secret(path: Path) -> Path:
    """A new random secret in place of what the file held; two of our processes know each other by it."""
    path.unlink(missing_ok=True)
    write_secret(path, secrets.token_bytes(32))
    return path
