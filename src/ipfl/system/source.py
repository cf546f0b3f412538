"""The source code that is running."""

from __future__ import annotations

import shutil
import subprocess
from functools import lru_cache
from pathlib import Path


@lru_cache
def source_commit() -> str | None:
    """Commit of the source tree that is running; None for an installed package."""
    if not shutil.which("git"):
        return None
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
