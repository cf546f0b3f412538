"""Failures that may pass: a disk that is full, a database that cannot be reached. Wait, log it, retry.

Waiting changes no result, so it is logged (logger `ipfl`, on stderr unless configured otherwise) and not
recorded: a run that had to wait writes the same bytes as one that had not.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential

from ipfl.errors import InputError

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""How long an operation is retried at most."""
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.05, 2.0
"""Between attempts; doubled each time."""
DISK_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when a file cannot grow: no space, no quota, a limit on its size."""

log = logging.getLogger("ipfl")


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed for want of space."""
    return isinstance(error, OSError) and error.errno in DISK_FULL_CODES


def retry(
    operation: Callable[[], T],
    is_temporary: Callable[[BaseException], bool],
    describe: Callable[[BaseException], str],
    seconds: float | None = None,
) -> T:
    """Repeats an operation while it fails in a way that may pass.

    Args:
        operation: What to do; what it did before it failed must not matter.
        is_temporary: Whether the same operation may succeed in a moment.
        describe: The failure for people; logged once.
        seconds: How long at most; None for `RETRY_SECONDS`.

    Raises:
        Exception: The last failure once the time is over, or one that does not pass.
    """
    limit = RETRY_SECONDS if seconds is None else seconds

    def warn(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1 and error is not None:
            log.warning("%s; trying again for up to %.0f s", describe(error), limit)

    attempts = Retrying(
        retry=retry_if_exception(is_temporary),
        stop=stop_before_delay(limit),
        wait=wait_exponential(multiplier=FIRST_WAIT_SECONDS, max=MAX_WAIT_SECONDS),
        before_sleep=warn,
        reraise=True,
    )
    return attempts(operation)


def retry_while_disk_full(operation: Callable[[], T], purpose: str, folder: Path | None) -> T:
    """Does something that writes files, and waits for space where the disk is full.

    Args:
        operation: What to do.
        purpose: The beginning of the error message, such as `cannot write the results`.
        folder: Of the run, for the advice how to resume it.

    Raises:
        InputError: The disk stayed full.
    """

    def describe(error: BaseException) -> str:
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"{purpose}: the disk is full ({getattr(error, 'strerror', error)}{where})"

    try:
        return retry(operation, is_disk_full, describe)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise InputError(describe(error) + resume_advice(folder)) from error


def resume_advice(folder: Path | None) -> str:
    """The end of an error message about a run that can be resumed."""
    return "" if folder is None else f"; what was committed is safe: resume the run in {folder}"
