"""Runs of a comparison side by side: the same bytes, an order in which nobody waits, and what ends them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque

import pytest
from tests.failing_methods import Broken, Killed, Stopped, add_methods
from tests.study.small_study import OTHERS, Log, config, contents
from typer.testing import CliRunner

from ipfl import methods
from ipfl.cli import app
from ipfl.config.whole_config import Config
from ipfl.methods import DEFAULT, REFERENCE, method_class
from ipfl.results.result import Result
from ipfl.study.comparison import compare
from ipfl.study.run_pool import RemoteObserver, share_of_workers
from ipfl.study.run_processes import death_text
from ipfl.study.study_run import RunOutcome

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="/proc, and signals to orphans, are Linux's")


@pytest.fixture
def stand_ins(monkeypatch):
    add_methods(monkeypatch, Killed, Broken, Stopped)


@pytest.fixture(scope="module")
def one_after_the_other(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    compare(config(), [DEFAULT, *OTHERS], [3, 1], out=out, workers=0)
    return contents(out)


class TestSameBytes:
    @pytest.mark.parametrize("workers", [2, 12])  # 12: each of 6 runs at once has two for its clients
    def test_side_by_side(self, one_after_the_other, tmp_path, workers):
        comparison = compare(config(), [DEFAULT, *OTHERS], [3, 1], out=tmp_path, workers=workers)
        assert contents(tmp_path) == one_after_the_other
        assert list(comparison.entries[DEFAULT].results) == [3, 1]
        assert comparison.entries[DEFAULT].results[1].models["cluster_0"].size > 0
        assert comparison.entries[DEFAULT].results[1].state is None

    def test_clients_that_leave_need_the_reference_first(self, tmp_path):
        sets = ("clients.leave=true", "clients.grace=0")
        for workers in (0, 2):
            compare(config(*sets), OTHERS, [0, 1], out=tmp_path / str(workers), workers=workers)
        assert contents(tmp_path / "0") == contents(tmp_path / "2")


class RecordingPool:
    """Ends the run that was begun first, without playing anything."""

    def __init__(self, capacity):
        self.capacity, self.begun, self.log = capacity, deque(), []

    def start(self, run, reference, observer):
        self.log.append(f"begin {run.label} {run.seed}")
        self.begun.append(run)

    def wait(self):
        run = self.begun.popleft()
        self.log.append(f"end {run.label} {run.seed}")
        return RunOutcome(run, Result({"method": run.label}, [], {}, None))

    def interrupt(self): ...

    def close(self): ...


class TestOrder:
    @pytest.mark.parametrize(
        ("capacity", "order"),
        [
            (1, "r0 a0 b0 r1 a1 b1 r2 a2 b2"),
            # The next reference begins before anybody waits for it: r2 before the others of seed 1.
            (2, "r0 r1 a0 b0 r2 a1 b1 a2 b2"),
            # Room for all: three references; whatever ends first lets its seed begin.
            (9, "r0 r1 r2 a0 b0 a1 b1 a2 b2"),
        ],
    )
    def test_the_reference_is_over_before_its_seed_begins(self, capacity, order):
        pool = RecordingPool(capacity)
        compare(config(), OTHERS, [0, 1, 2], make_pool=lambda *_: pool)
        letters = dict(zip((REFERENCE, *OTHERS), "rab", strict=True))
        begun = [entry.split()[1:] for entry in pool.log if entry.startswith("begin ")]
        assert " ".join(f"{letters[name]}{seed}" for name, seed in begun) == order
        for seed in range(3):
            over = pool.log.index(f"end {REFERENCE} {seed}")
            assert all(pool.log.index(f"begin {name} {seed}") > over for name in OTHERS)

    @pytest.mark.parametrize(
        "processes, runs, deadline, share",
        [(2, 2, None, 0), (2, 1, None, 2), (7, 3, None, 2), (5, 3, None, 0), (2, 2, 1.5, 1), (8, 2, 1.5, 4)],
    )
    def test_share(self, processes, runs, deadline, share):
        """Equal shares; a run with one process plays its clients itself, unless a deadline may end one."""
        sets = [] if deadline is None else [f"clients.deadline={deadline}"]
        assert share_of_workers(processes, runs, config(*sets)) == share


@pytest.mark.usefixtures("stand_ins")
class TestFailures:
    def test_a_killed_process_fails_its_run_only(self, tmp_path):
        log, names = Log(), ["killed", "broken", OTHERS[0]]
        comparison = compare(config(), names, [0, 1], out=tmp_path, workers=2, make_observer=log)
        reason = (
            "the process of this run was killed by SIGKILL (out of memory?); "
            "resume plays it on from its last checkpoint"
        )
        assert comparison.entries["killed"].failures == {0: reason, 1: reason}
        assert log.told["killed, seed 0"] == [("start", "killed", 2), ("round", 0), ("finish",)]
        assert comparison.entries["broken"].failures == dict.fromkeys((0, 1), "RuntimeError: out of luck")
        assert set(comparison.entries[OTHERS[0]].results) == {0, 1}
        assert not comparison.interrupted

    def test_a_reference_that_dies(self, monkeypatch):
        """Without it, the others have no PMA; those that need it say so."""
        monkeypatch.setattr(
            methods, "method_class", lambda name: Killed if name == REFERENCE else method_class(name)
        )
        entry = compare(config(), [OTHERS[0]], [0], workers=2).entries[OTHERS[0]]
        assert entry.results[0].summary["pma"] is None
        entry = compare(config("clients.leave=true"), [OTHERS[0]], [0], workers=2).entries[OTHERS[0]]
        assert "needs a reference run" in entry.failures[0]

    def test_ctrl_c_inside_a_run_ends_all(self, tmp_path):
        comparison = compare(config(), ["stopped", *OTHERS], [0], out=tmp_path, workers=1)
        assert comparison.interrupted
        assert comparison.entries["stopped"].failures == {0: "interrupted after 1 rounds"}
        assert not comparison.entries[OTHERS[1]].results

    def test_exit_codes(self):
        assert death_text(3, has_folder=False) == "the process of this run ended with exit code 3"
        assert death_text(-11, has_folder=False) == "the process of this run was killed by SIGSEGV"


class TestObservers:
    def test_told_in_this_process(self):
        log = Log()
        compare(config(), [OTHERS[0]], [0, 1], workers=2, make_observer=log)
        for seed in (0, 1):
            for name in (REFERENCE, OTHERS[0]):
                told = [("start", name, 2), ("round", 0), ("round", 1), ("finish",)]
                assert log.told[f"{name}, seed {seed}"] == told

    def test_no_end_without_a_beginning(self):
        log = Log()
        observer = RemoteObserver(log("m", 1, 1))
        for what in (("finish",), ("start", "m", 1), ("finish",), ("finish",)):
            observer.tell(*what)
        assert log.told["m"] == [("start", "m", 1), ("finish",)]


LONG = ["--set", "task.model=softmax", "--set", "task.clients=4", "--methods", ",".join(OTHERS)]


def begin_comparison(out, rounds=400):
    """A comparison in a process of its own, once two runs have played a round."""
    words = ["compare", *LONG, "--set", f"rounds={rounds}", "--workers", "2", "--quiet", "--out", str(out)]
    begun = subprocess.Popen(
        [sys.executable, "-c", "from ipfl.cli import main; main()", *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 300
    while len([path for path in out.glob("*/seed-*/metrics.jsonl") if path.stat().st_size]) < 2:
        assert begun.poll() is None, begun.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)
    return begun


def children_of(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in found.stdout.split()]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The comparison that is interrupted, if nobody does that."""
    out = tmp_path_factory.mktemp("uninterrupted")
    settings = Config.load(None, ["rounds=40", "task.model=softmax", "task.clients=4"])
    compare(settings, OTHERS, out=out, workers=0)
    return contents(out)


@pytest.mark.slow
@linux_only
class TestEnds:
    @pytest.mark.parametrize("to_group", [False, True])  # a terminal sends Ctrl-C to the whole group
    def test_ctrl_c_keeps_what_was_played_and_it_can_be_resumed(self, uninterrupted, tmp_path, to_group):
        begun = begin_comparison(tmp_path / "out", 40)
        runs = children_of(begun.pid)
        (os.killpg if to_group else os.kill)(begun.pid, signal.SIGINT)
        _, errors = begun.communicate(timeout=60)
        assert begun.returncode == 130, errors
        assert "interrupted; results so far in" in errors
        assert re.search(r"seed 0: interrupted after \d+ rounds", errors)
        assert not any(map(is_running, runs))
        resume = ["compare", "--resume", str(tmp_path / "out"), "--workers", "0", "--quiet"]
        done = CliRunner().invoke(app, resume)
        assert done.exit_code == 0, done.output
        assert contents(tmp_path / "out") == uninterrupted

    def test_no_run_goes_on_when_its_parent_is_killed(self, tmp_path):
        begun = begin_comparison(tmp_path / "out")
        runs = children_of(begun.pid)
        assert len(runs) == 2
        begun.kill()
        begun.communicate()
        until = time.monotonic() + 10
        while any(map(is_running, runs)):
            assert time.monotonic() < until
            time.sleep(0.02)
