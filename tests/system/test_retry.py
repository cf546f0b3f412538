"""Failures that may pass are retried, all others are raised at once."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from ipfl.errors import InputError
from ipfl.system.retry import is_disk_full, retry, retry_while_disk_full


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr("ipfl.system.retry.RETRY_SECONDS", 0.2)
    monkeypatch.setattr("ipfl.system.retry.FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr("ipfl.system.retry.MAX_WAIT_SECONDS", 0.01)


def failing(times, error):
    """Work that succeeds after so many failures."""
    calls = []

    def work():
        calls.append(None)
        if len(calls) <= times:
            raise error
        return len(calls)

    return work


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/mine/metrics.jsonl")


def test_what_passes_is_waited_for_and_logged_once(caplog):
    with caplog.at_level(logging.WARNING, logger="ipfl"):
        assert retry_while_disk_full(failing(3, FULL), "cannot commit round 4", None) == 4
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "cannot commit round 4: the disk is full (No space left on device: runs/mine/metrics.jsonl); trying"
    )


def test_what_stays_is_one_line_that_says_how_to_resume(tmp_path):
    with pytest.raises(InputError) as error:
        retry_while_disk_full(failing(10**6, FULL), "cannot commit round 4", tmp_path)
    assert str(error.value) == (
        "cannot commit round 4: the disk is full (No space left on device: runs/mine/metrics.jsonl); "
        f"what was committed is safe: resume the run in {tmp_path}"
    )


def test_a_run_without_a_folder_cannot_be_resumed():
    with pytest.raises(InputError, match=r"metrics\.jsonl\)$"):
        retry_while_disk_full(failing(10**6, FULL), "cannot play round 0", None)


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), ValueError("no")])
def test_what_does_not_pass_is_raised_at_once(error, caplog):
    calls = failing(1, error)
    with pytest.raises(type(error), match="no"):
        retry_while_disk_full(calls, "cannot", None)
    assert calls() == 2, "tried once only"
    assert caplog.records == []


def test_what_a_full_disk_may_say():
    assert all(is_disk_full(OSError(code, "full")) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    assert not is_disk_full(OSError(errno.EIO, "broken"))
    assert not is_disk_full(ValueError("no space left on device"))


def test_no_time_for_a_retry():
    with pytest.raises(OSError, match="No space"):
        retry(failing(1, FULL), is_disk_full, str, 0)
