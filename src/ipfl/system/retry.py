"""Failures that may pass, such as a database that cannot be reached. Wait, log it, retry.

Waiting changes no result, so it is logged (logger `ipfl`, on stderr unless configured otherwise) and not
recorded: a run that had to wait writes the same bytes as one that had not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""How long an operation is retried at most."""
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.05, 2.0
"""Between attempts; doubled each time."""

log = logging.getLogger("ipfl")


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
