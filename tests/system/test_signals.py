"""Ctrl-C and SIGTERM, sent to this very process."""

from __future__ import annotations

import signal
import threading

import pytest

from ipfl.system.signals import InterruptHandler, exit_on_sigterm


def test_ctrl_c_is_raised_at_once_and_again_if_something_caught_it() -> None:
    previous = signal.getsignal(signal.SIGINT)
    with InterruptHandler() as interrupt:
        interrupt.raise_if_requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.raise_if_requested()
    assert signal.getsignal(signal.SIGINT) is previous


def test_sigterm_runs_finally_blocks_and_exits_with_143() -> None:
    previous = signal.getsignal(signal.SIGTERM)
    cleaned = False

    def receive() -> None:
        nonlocal cleaned
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned = True

    with pytest.raises(SystemExit) as caught, exit_on_sigterm():
        receive()
    assert (caught.value.code, cleaned) == (143, True)
    assert signal.getsignal(signal.SIGTERM) is previous


def test_other_threads_change_no_handler() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen = []

    def enter_both() -> None:
        with InterruptHandler(), exit_on_sigterm():
            seen.extend(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM))

    thread = threading.Thread(target=enter_both)
    thread.start()
    thread.join()
    assert seen == handlers
