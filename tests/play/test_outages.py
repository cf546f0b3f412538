"""A store that is down is waited for without a trace; a full disk ends the run with one line, to be resumed.

A real PostgreSQL that goes down: `ledger/test_database_failures.py`.
"""

from __future__ import annotations

import os
import resource
import time

import numpy as np
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError
from tests.play.killed_runs import run_contents
from tests.small_runs import run_small, small_task

from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.ledger.store import RunStore
from ipfl.system.files import write_record


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


class AfterRound:
    """Does something after a round."""

    def __init__(self, number, action):
        self.number, self.action = number, action

    def start(self, method, rounds): ...

    def finish(self): ...

    def round(self, line):
        if line["round"] == self.number:
            self.action()


class TestStoreThatIsDown:
    """From the first round on, for some seconds."""

    @pytest.fixture
    def break_for(self):
        until, listening = [0.0], []

        def begin(connection):
            if time.monotonic() < until[0]:
                raise OperationalError(
                    "BEGIN", {}, ConnectionError("it is down"), connection_invalidated=True
                )

        def start(seconds):
            def go_down():
                until[0] = time.monotonic() + seconds
                event.listen(Engine, "begin", begin)
                listening.append(begin)

            return AfterRound(0, go_down)

        yield start
        for one in listening:
            event.remove(Engine, "begin", one)

    def test_it_is_waited_for_without_a_trace(self, task, tmp_path, break_for, caplog):
        plain, out = tmp_path / "plain" / "run", tmp_path / "run"
        run_small(task, "ipfl-plus", plain, rounds=3)
        run_small(task, "ipfl-plus", out, rounds=3, observer=break_for(0.4))
        (record,) = caplog.records
        assert record.getMessage().startswith("cannot post round 1")
        assert run_contents(out) == run_contents(plain)

    def test_what_lasts_too_long_ends_the_run(self, task, tmp_path, break_for, monkeypatch):
        monkeypatch.setattr("ipfl.system.retry.RETRY_SECONDS", 0.2)
        out = tmp_path / "run"
        with pytest.raises(InputError, match=rf"what was committed is safe: resume the run in {out}"):
            run_small(task, "ipfl-plus", out, rounds=3, observer=break_for(0.3))
        time.sleep(0.2)
        with RunStore.open(out) as store:
            assert store.last_round() == 0
            assert verify_run(store) is None


def limited(size, work):
    """Does it in a forked process whose files cannot grow beyond so many bytes; the end."""
    reading, writing = os.pipe()  # a file would be limited as well
    child = os.fork()
    if child == 0:
        code = 3
        with open(writing, "w") as said:
            try:
                work(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)))
                code = 0
            except (InputError, OSError) as error:
                said.write(f"error: {error}\n")
                code = 1
            finally:
                said.flush()
                os._exit(code)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


class TestFullDisk:
    """For real: the system refuses to let files grow (EFBIG, as a quota does)."""

    # 300 bytes: no checkpoint, no memory of a client with a model; 16 kB: no page of the run store.
    @pytest.mark.parametrize(("method", "size"), [("local", 300), ("ipfl-plus", 300), ("ipfl-plus", 16_000)])
    def test_it_ends_the_run_with_one_line(self, task, tmp_path, method, size, monkeypatch):
        monkeypatch.setattr("ipfl.system.retry.RETRY_SECONDS", 0.1)
        plain, out = tmp_path / "plain" / "run", tmp_path / "run"

        def play(limit):
            run_small(task, method, out, rounds=4, observer=AfterRound(1, limit))

        code, said = limited(size, play)
        assert (code, said.count("\n")) == (1, 1)
        assert said.endswith(f"resume the run in {out}\n")
        assert not list(out.rglob("*.draft"))
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
        run_small(task, method, out, rounds=4, resume=True)
        run_small(task, method, plain, rounds=4)
        assert run_contents(out) == run_contents(plain)

    def test_a_line_is_appended_whole_or_not_at_all(self, tmp_path):
        folder = RunFolder(RunOutput(tmp_path))
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            folder.add_round({"round": 0})

    def test_a_file_that_does_not_fit_leaves_nothing(self, tmp_path):
        def write(limit):
            limit()
            write_record(tmp_path / "m.safetensors", Record({"m": np.ones(1000, np.float32)}))

        code, said = limited(1000, write)
        assert (code, "File too large" in said) == (1, True)
        assert list(tmp_path.iterdir()) == []
