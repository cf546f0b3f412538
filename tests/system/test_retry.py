"""Failures that may pass are retried, all others are raised at once."""

from __future__ import annotations

import errno
import logging

import pytest

from ipfl.errors import InputError
from ipfl.system.files import explain_full_disk
from ipfl.system.retry import retry


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr("ipfl.system.retry.RETRY_SECONDS", 0.2)
    monkeypatch.setattr("ipfl.system.retry.FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr("ipfl.system.retry.MAX_WAIT_SECONDS", 0.01)


def failing(times):
    """Work that succeeds after so many failures."""
    calls = []

    def work():
        calls.append(None)
        if len(calls) <= times:
            raise TimeoutError("it is away")
        return len(calls)

    return work


def is_timeout(error):
    return isinstance(error, TimeoutError)


def test_what_passes_is_waited_for_and_logged_once(caplog):
    with caplog.at_level(logging.WARNING, logger="ipfl"):
        assert retry(failing(3), is_timeout, str) == 4
    (record,) = caplog.records
    assert record.getMessage() == "it is away; trying again for up to 0 s"


@pytest.mark.parametrize(("times", "seconds"), [(10**6, None), (1, 0)])
def test_what_stays_is_raised_in_the_end(times, seconds):
    with pytest.raises(TimeoutError, match="away"):
        retry(failing(times), is_timeout, str, seconds)


def test_what_does_not_pass_is_raised_at_once(caplog):
    calls = failing(1)
    with pytest.raises(TimeoutError, match="away"):
        retry(calls, lambda error: False, str)
    assert calls() == 2, "tried once only"
    assert caplog.records == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_explained(code):
    with pytest.raises(InputError) as said, explain_full_disk("; resume it"):
        raise OSError(code, "it is full", "runs/metrics.jsonl")
    assert str(said.value) == "the disk is full (it is full: runs/metrics.jsonl); resume it"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no space left"), ValueError("no space left")])
def test_nothing_else_is_a_full_disk(error):
    with pytest.raises(type(error)) as raised, explain_full_disk():
        raise error
    assert raised.value is error
