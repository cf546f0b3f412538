"""A disk that is full and a store that is down: retried without a trace, or one clear error.

Both by the fault plan and for real; a real PostgreSQL that goes down: `ledger/test_database_failures.py`.
"""

from __future__ import annotations

import logging
import os
import resource
import sqlite3
import threading

import numpy as np
import pytest
from tests.play.killed_runs import run_contents
from tests.small_runs import run_small, small_task

from ipfl.config.stress_section import FaultsConfig
from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.ledger.store import RunStore
from ipfl.stress.faults import Outage
from ipfl.system import retry
from ipfl.system.files import write_record


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


class TestDrills:
    """By the fault plan."""

    def test_an_outage_lasts_from_when_it_is_needed(self, monkeypatch):
        now = [100.0]
        monkeypatch.setattr("ipfl.stress.faults.time.monotonic", lambda: now[0])
        outage = Outage([3], 2.0)
        assert not outage.is_on(2)
        found = []
        for seconds in (0, 1.9, 2.0, 9):
            now[0] = 100 + seconds
            found.append(outage.is_on(3))
        assert found == [True, True, False, False]

    @pytest.mark.parametrize("kind", ["full_disk", "store_down"])
    def test_waited_for_without_a_trace(self, task, tmp_path, kind, caplog, monkeypatch):
        faults = FaultsConfig(**{kind: [1]}, outage=0.6)
        plain, drilled = tmp_path / "plain" / "run", tmp_path / "drilled" / "run"
        run_small(task, "ipfl-plus", drilled, rounds=3, faults=faults)
        monkeypatch.setattr(Outage, "is_on", lambda *_: False)
        run_small(task, "ipfl-plus", plain, rounds=3, faults=faults)
        assert run_contents(plain) == run_contents(drilled)
        (record,) = caplog.records
        said = {"full_disk": "cannot commit round 1: the disk is full", "store_down": "cannot post round 1"}
        assert record.getMessage().startswith(said[kind])

    @pytest.mark.parametrize("kind", ["full_disk", "store_down"])
    def test_what_lasts_too_long_ends_the_run_which_can_be_resumed(
        self, task, tmp_path, kind, monkeypatch, caplog
    ):
        monkeypatch.setattr("ipfl.system.retry.RETRY_SECONDS", 0.3)
        out, plain = tmp_path / "run", tmp_path / "plain" / "run"
        faults = FaultsConfig(**{kind: [1]}, outage=60)
        with pytest.raises(InputError, match=rf"what was committed is safe: resume the run in {out}"):
            run_small(task, "ipfl-plus", out, rounds=3, faults=faults)
        with RunStore.open(out) as store:
            assert store.last_round() == 0
            assert verify_run(store) is None
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
        monkeypatch.setattr(Outage, "is_on", lambda *_: False)
        run_small(task, "ipfl-plus", out, rounds=3, faults=faults, resume=True)
        run_small(task, "ipfl-plus", plain, rounds=3, faults=faults)
        assert run_contents(out) == run_contents(plain)


def limit_file_size(size):
    """No file of this process can grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class LimitFileSize:
    """Limits the size of files in the third round of a run."""

    def __init__(self, size):
        self.size = size

    def start(self, method, rounds): ...

    def finish(self): ...

    def round(self, line):
        if line["round"] == 1:
            limit_file_size(self.size)


class LiftLimit(logging.StreamHandler):
    """Writes what is logged, and lifts the limit some seconds after the first line."""

    def __init__(self, stream, seconds):
        super().__init__(stream)
        self.timer = threading.Timer(seconds, limit_file_size, [resource.RLIM_INFINITY])
        self.timer.daemon = True  # the process need not wait for it

    def emit(self, record):
        super().emit(record)
        if self.timer.ident is None:
            self.timer.start()


def limited(task, method, out, size, seconds, retry_seconds=30.0):
    """Runs it in a forked process, for which the limit holds; returns its exit code and what it said."""
    reading, writing = os.pipe()  # a file would be limited as well
    child = os.fork()
    if child == 0:
        code = 3
        with open(writing, "w") as said:
            try:
                retry.log.addHandler(LiftLimit(said, seconds))
                retry.RETRY_SECONDS = retry_seconds
                run_small(task, method, out, rounds=4, observer=LimitFileSize(size))
                code = 0
            except InputError as error:
                said.write(f"error: {error}\n")
                code = 1
            finally:
                said.flush()
                os._exit(code)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said


class TestFullDisk:
    """For real: the system refuses to let files grow (EFBIG, as a quota does)."""

    # 300 bytes: no checkpoint, no memory of a client with a model; 16 kB: no page of the run store.
    @pytest.mark.parametrize(
        ("method", "size"), [("fedavg", 300), ("local", 300), ("ipfl-plus", 300), ("ipfl-plus", 16_000)]
    )
    def test_waited_for_without_a_trace(self, task, tmp_path, method, size):
        plain, out = tmp_path / "plain" / "run", tmp_path / "run"
        run_small(task, method, plain, rounds=4)
        code, said = limited(task, method, out, size, seconds=0.3)
        assert code == 0, said
        assert "trying again for up to 30 s" in said
        assert run_contents(out) == run_contents(plain)

    def test_what_stays_full_ends_the_run_with_one_line(self, task, tmp_path):
        plain, out = tmp_path / "plain" / "run", tmp_path / "run"
        code, said = limited(task, "local", out, 300, seconds=60, retry_seconds=0.3)
        assert code == 1
        assert said.splitlines()[-1].startswith(
            "error: cannot play round 2: the disk is full (File too large: "
        )
        assert said.splitlines()[-1].endswith(f"resume the run in {out}")
        assert not list(out.rglob("*.draft"))
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
        run_small(task, "local", out, rounds=4, resume=True)
        run_small(task, "local", plain, rounds=4)
        assert run_contents(out) == run_contents(plain)

    def test_a_line_is_appended_whole_or_not_at_all(self, tmp_path):
        folder = RunFolder(RunOutput(tmp_path))
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            folder.add_round({"round": 0})

    def test_a_file_that_does_not_fit_leaves_nothing(self, tmp_path):
        """In a child, because the limit would hold for this whole process."""
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                write_record(tmp_path / "m.safetensors", Record({"m": np.ones(1000, np.float32)}))
            except OSError as error:
                os._exit(error.errno)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.strerror(os.waitstatus_to_exitcode(status)) == "File too large"
        assert list(tmp_path.iterdir()) == []


def test_a_store_that_another_process_locks(task, tmp_path):
    """Somebody else holds the database's lock for longer than SQLite itself waits."""
    out, plain = tmp_path / "run", tmp_path / "plain" / "run"

    class Locker:
        def start(self, method, rounds): ...

        def finish(self): ...

        def round(self, line):
            if line["round"] == 0:
                other = sqlite3.connect(out / "run.db", isolation_level=None, check_same_thread=False)
                other.execute("BEGIN IMMEDIATE")
                threading.Timer(1.5, other.close).start()

    run_small(task, "ipfl-plus", out, rounds=3, observer=Locker())
    run_small(task, "ipfl-plus", plain, rounds=3)
    assert run_contents(out) == run_contents(plain)
