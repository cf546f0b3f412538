"""Processes end with whoever started them, in every way in which that can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ipfl.deploy import processes as module
from ipfl.deploy.processes import ProcessDiedError, Processes, environment

FAMILY = """
import subprocess, sys, time, os
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
"""A process with a child of its own, which writes both their numbers to a file."""


def alive(number: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def family(path: Path) -> list[int]:
    """The numbers, once they are there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and len(words := path.read_text().split()) == 2:
            return [int(word) for word in words]
        time.sleep(0.02)
    raise AssertionError("the family did not start")


def gone(numbers: list[int]) -> bool:
    """Whether all of them end within a few seconds."""
    deadline = time.monotonic() + 10
    while any(map(alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, numbers))


def test_all_generations_end_with_the_block(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("one", [sys.executable, "-c", FAMILY, "one"], environment(tmp_path), tmp_path)
        processes.start("two", [sys.executable, "-c", FAMILY, "two"], environment(tmp_path), tmp_path)
        numbers = family(tmp_path / "one") + family(tmp_path / "two")
        assert all(map(alive, numbers))
        processes.stop("one")
        assert gone(numbers[:2])
        assert all(map(alive, numbers[2:]))
        processes.check()
    assert gone(numbers)


def test_what_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY
    with Processes(tmp_path) as processes:
        processes.start("deaf", [sys.executable, "-c", deaf, "deaf"], environment(tmp_path), tmp_path)
        numbers = family(tmp_path / "deaf")
    assert gone(numbers)


def test_a_process_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    words = "print('first'); raise SystemExit('no such luck')"
    with Processes(tmp_path / "logs") as processes:
        processes.start("unlucky", [sys.executable, "-c", words], environment(tmp_path), tmp_path)
        processes.wait_while_alive()
        with pytest.raises(
            ProcessDiedError, match=r"unlucky ended with code 1; .* ends with: first\nno such luck"
        ):
            processes.check()
    assert (tmp_path / "logs" / "unlucky.log").read_text() == "first\nno such luck\n"


SUPERVISOR = """
import sys, time
from pathlib import Path
from ipfl.core_signals import exit_on_sigterm
from ipfl.deploy.processes import Processes, environment
here = Path(sys.argv[1])
with exit_on_sigterm(), Processes(here) as processes:
    processes.start("one", [sys.executable, "-c", sys.argv[2], "one"], environment(here), here)
    while not (here / "fail").exists():
        time.sleep(0.02)
    raise RuntimeError("failure")
"""


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -2), (signal.SIGKILL, -9), (None, 1)]
)
def test_a_supervisor_takes_everything_with_it(tmp_path: Path, end: signal.Signals | None, code: int) -> None:
    """143 is 128 + 15 (SIGTERM); after Ctrl-C, Python ends itself by SIGINT; None stands for a failure."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), FAMILY], stderr=subprocess.DEVNULL
    )
    numbers = family(tmp_path / "one")
    if end is None:
        (tmp_path / "fail").touch()
    else:
        supervisor.send_signal(end)
    assert supervisor.wait(20) == code
    assert gone(numbers)


def test_flower_runs_without_telemetry_and_updates(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
