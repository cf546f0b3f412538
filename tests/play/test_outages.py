"""A locked store is waited for without a trace; a full disk ends the run with one line, to be resumed."""

from __future__ import annotations

import os
import resource
import sqlite3
import threading

import pytest
from tests.play.killed_runs import run_contents
from tests.small_runs import AfterRound, run_small, small_task

from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.ledger import database
from ipfl.ledger.store import RunStore


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


class TestLockedStore:
    """Somebody else locks the store after the first round."""

    def locker(self, out, seconds):
        def lock():
            other = sqlite3.connect(out / "run.db", isolation_level=None, check_same_thread=False)
            other.execute("BEGIN IMMEDIATE")
            threading.Timer(seconds, other.close).start()

        return AfterRound(0, lock)

    def test_it_is_waited_for_without_a_trace(self, task, tmp_path):
        plain, out = tmp_path / "plain" / "run", tmp_path / "run"
        run_small(task, "ipfl-plus", plain, rounds=3)
        run_small(task, "ipfl-plus", out, rounds=3, observer=self.locker(out, 0.4))
        assert run_contents(out) == run_contents(plain)

    def test_what_lasts_too_long_ends_the_run(self, task, tmp_path, monkeypatch):
        monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
        out = tmp_path / "run"
        with pytest.raises(InputError, match=rf"cannot post round 1: .*locked; .* resume the run in {out}"):
            run_small(task, "ipfl-plus", out, rounds=3, observer=self.locker(out, 0.5))
        store = RunStore.open(out)  # reading goes on meanwhile
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
    def test_it_ends_the_run_with_one_line(self, task, tmp_path, method, size):
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
