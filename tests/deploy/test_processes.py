"""Processes end when the process that started them ends, in every possible way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipfl.deploy import processes as module
from ipfl.deploy.processes import ProcessDiedError, Processes

PROCESS_WITH_CHILD = """
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
"""Code of a process with a child, which writes both process ids to a file."""


def is_alive(number: int) -> bool:
    """Whether a process runs; a zombie process does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def process_ids(path: Path) -> list[int]:
    """Waits for the file, and returns the process ids."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and len(words := path.read_text().split()) == 2:
            return [int(word) for word in words]
        time.sleep(0.02)
    raise AssertionError("the processes did not start")


def have_ended(numbers: list[int]) -> bool:
    """Whether all of them end within ten seconds."""
    deadline = time.monotonic() + 10
    while any(map(is_alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, numbers))


def test_all_generations_end_with_the_block(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("one", [sys.executable, "-c", PROCESS_WITH_CHILD, "one"], os.environ, tmp_path)
        processes.start("two", [sys.executable, "-c", PROCESS_WITH_CHILD, "two"], os.environ, tmp_path)
        numbers = process_ids(tmp_path / "one") + process_ids(tmp_path / "two")
        assert all(map(is_alive, numbers))
        processes.running.pop("one").kill()
        assert have_ended(numbers[:2])
        assert all(map(is_alive, numbers[2:]))
        processes.raise_if_one_ended()
    assert have_ended(numbers)


def test_what_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.3)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PROCESS_WITH_CHILD
    with Processes(tmp_path) as processes:
        processes.start("stubborn", [sys.executable, "-c", stubborn, "stubborn"], os.environ, tmp_path)
        numbers = process_ids(tmp_path / "stubborn")
    assert have_ended(numbers)


def test_a_process_that_ends_early_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    code = "print('first'); raise SystemExit('no disk')"
    with Processes(tmp_path / "logs") as processes:
        processes.start("failing", [sys.executable, "-c", code], os.environ, tmp_path)
        processes.wait_until_one_ends()
        with pytest.raises(
            ProcessDiedError, match=r"failing ended with code 1; .* ends with: first\nno disk"
        ):
            processes.raise_if_one_ended()
    assert (tmp_path / "logs" / "failing.log").read_text() == "first\nno disk\n"


PARENT = """
import os, sys, time
from pathlib import Path
from ipfl.system.signals import exit_on_sigterm
from ipfl.deploy.processes import Processes
here = Path(sys.argv[1])
with exit_on_sigterm(), Processes(here) as processes:
    processes.start("one", [sys.executable, "-c", sys.argv[2], "one"], os.environ, here)
    while not (here / "fail").exists():
        time.sleep(0.02)
    raise RuntimeError("failure")
"""


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -2), (signal.SIGKILL, -9), (None, 1)]
)
def test_everything_ends_with_its_parent(tmp_path: Path, end: signal.Signals | None, code: int) -> None:
    """143 is 128 + 15 (SIGTERM); after Ctrl-C, Python ends itself by SIGINT; None stands for a failure."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), PROCESS_WITH_CHILD], stderr=subprocess.DEVNULL
    )
    numbers = process_ids(tmp_path / "one")
    if end is None:
        (tmp_path / "fail").touch()
    else:
        parent.send_signal(end)
    assert parent.wait(20) == code
    assert have_ended(numbers)
