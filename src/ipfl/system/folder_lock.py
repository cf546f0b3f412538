"""Folders that one process at a time works in."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from ipfl.errors import InputError

LOCK_SECONDS = 5.0
"""How long a locked folder is waited for: workers of a process that was killed end a moment later."""


class FolderLock:
    """Holds a folder for one process at a time; the system releases it however the process ends.

    It needs no file: the folder itself is locked. Processes that this one forks later hold it too.

    Raises:
        InputError: Another process holds it.
    """

    def __init__(self, folder: Path):
        self._handle: int | None = os.open(folder, os.O_RDONLY)
        until = time.monotonic() + LOCK_SECONDS
        with suppress(OSError):  # a file system without locks
            while not _is_free(self._handle, fcntl.LOCK_EX):
                if time.monotonic() > until:
                    self.release()
                    raise InputError(f"another process is at work in {folder}")
                time.sleep(0.05)

    def release(self) -> None:
        """Lets others have it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def is_locked(folder: Path) -> bool | None:
    """Whether a process holds a folder (`FolderLock`); None if this system cannot tell."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        return not _is_free(handle, fcntl.LOCK_SH)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)


def _is_free(handle: int, lock: int) -> bool:
    """Whether nobody else holds it; it is locked then."""
    try:
        fcntl.flock(handle, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
