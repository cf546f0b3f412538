"""Trouble that passes: a disk that is full for now, a store that is away. Wait, say so, try again.

What is waited for changes no result, so it is logged (logger `ipfl`, on stderr unless configured otherwise)
and not recorded: a run that had to wait writes the same bytes as one that had not.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

from ipfl.errors import InputError

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that are waited at most."""
DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between attempts; the last one from then on."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when a file cannot grow: no space, no quota, a limit on its size."""

log = logging.getLogger("ipfl")


def disk_full(error: BaseException) -> bool:
    """Whether a write failed for want of space."""
    return isinstance(error, OSError) and error.errno in FULL


def patiently(
    work: Callable[[], T],
    passing: Callable[[Exception], bool],
    told: Callable[[Exception], str],
    patience: float | None = None,
) -> T:
    """Does some work that may be repeated, again and again while its failure is one that passes.

    Args:
        work: What to do; whatever it did before it failed must not matter.
        passing: Whether the same work may succeed in a moment.
        told: The failure for people; said once.
        patience: Seconds to wait at most; None for `PATIENCE`.

    Raises:
        Exception: The last failure, once patience is at its end, or one that does not pass.
    """
    until = time.monotonic() + (PATIENCE if patience is None else patience)
    for attempt, delay in enumerate(chain(DELAYS, repeat(DELAYS[-1]))):
        try:
            return work()
        except Exception as error:
            if not passing(error) or time.monotonic() + delay > until:
                raise
            if attempt == 0:
                log.warning("%s; trying again for up to %.0f s", told(error), until - time.monotonic())
        time.sleep(delay)
    raise AssertionError("delays never end")


def with_room(work: Callable[[], T], doing: str, folder: Path | None) -> T:
    """Does some work that writes files, and waits for room where the disk is full.

    Raises:
        InputError: The disk stayed full; says how to go on once there is room in the run's folder.
    """

    def told(error: BaseException) -> str:
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"{doing}: the disk is full ({getattr(error, 'strerror', error)}{where})"

    try:
        return patiently(work, disk_full, told)
    except OSError as error:
        if not disk_full(error):
            raise
        raise InputError(told(error) + how_to_go_on(folder)) from error


def how_to_go_on(folder: Path | None) -> str:
    """The end of a complaint about a run that could be continued."""
    return "" if folder is None else f"; what was committed is safe, go on with: ipfl run --resume {folder}"
