"""A disk that is full and a store that is down: retried without a trace, or one clear error.

Both as a fixture and for real; a real PostgreSQL that goes down: `ledger/test_database_failures.py`.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import sqlite3
import threading
import time

import numpy as np
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError
from tests.play.killed_runs import run_contents
from tests.small_runs import run_small, small_task

from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.keep.journal import Journal
from ipfl.keep.run_audit import verify_run
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.ledger.store import RunStore
from ipfl.system import retry
from ipfl.system.files import write_record


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


class Outage:
    """A full disk, or a store that is down, in the commit of round 1: for some seconds from then on."""

    def __init__(self, kind, seconds):
        self.kind, self.seconds = kind, seconds
        self.until = None
        self.is_committing = False

    @property
    def is_on(self):
        self.until = self.until or time.monotonic() + self.seconds
        return time.monotonic() < self.until

    def around(self, commit):
        """The commit of a round, with the outage."""

        def failing(journal, line, state, *, last):
            self.is_committing = line["round"] == 1
            if self.kind == "full disk" and self.is_committing and self.is_on:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            try:
                return commit(journal, line, state, last=last)
            finally:
                self.is_committing = False

        return failing

    def begin(self, connection):
        """Called when the database begins a transaction."""
        if self.kind == "store down" and self.is_committing and self.is_on:
            raise OperationalError("BEGIN", {}, ConnectionError("it is down"), connection_invalidated=True)


class TestOutages:
    @pytest.fixture(params=["full disk", "store down"])
    def break_for(self, request, monkeypatch):
        """Begins an outage that lasts so many seconds."""
        listening = []

        def start(seconds):
            outage = Outage(request.param, seconds)
            monkeypatch.setattr(Journal, "_commit", outage.around(Journal._commit))
            event.listen(Engine, "begin", outage.begin)
            listening.append(outage.begin)
            return outage

        yield start
        for begin in listening:
            event.remove(Engine, "begin", begin)

    @pytest.fixture
    def plain(self, task, tmp_path):
        """What an undisturbed run keeps."""
        run_small(task, "ipfl-plus", tmp_path / "plain" / "run", rounds=3)
        return run_contents(tmp_path / "plain" / "run")

    def test_waited_for_without_a_trace(self, task, tmp_path, plain, break_for, caplog):
        outage = break_for(0.6)
        run_small(task, "ipfl-plus", tmp_path / "run", rounds=3)
        assert run_contents(tmp_path / "run") == plain
        (record,) = caplog.records
        said = {"full disk": "cannot commit round 1: the disk is full", "store down": "cannot post round 1"}
        assert record.getMessage().startswith(said[outage.kind])

    def test_what_lasts_too_long_ends_the_run_which_can_be_resumed(
        self, task, tmp_path, plain, break_for, monkeypatch
    ):
        monkeypatch.setattr("ipfl.system.retry.RETRY_SECONDS", 0.3)
        out, outage = tmp_path / "run", break_for(60)
        with pytest.raises(InputError, match=rf"what was committed is safe: resume the run in {out}"):
            run_small(task, "ipfl-plus", out, rounds=3)
        with RunStore.open(out) as store:
            assert store.last_round() == 0
            assert verify_run(store) is None
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
        outage.until = time.monotonic()
        run_small(task, "ipfl-plus", out, rounds=3, resume=True)
        assert run_contents(out) == plain


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
