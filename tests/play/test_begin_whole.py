"""A run begins whole or leaves no trace, alone in its folder; bad input of any kind has the exit code 2."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.play.killed_runs import run_contents
from tests.small_runs import run_small, small_task
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.errors import InputError
from ipfl.keep.run_folder import holds_run
from ipfl.results.finished import FinishedRun
from ipfl.system import folder_lock, plugins
from ipfl.system.folder_lock import FolderLock, is_locked

SMALL_RUN = [
    *("--set", "rounds=1", "--set", "task.clients=3", "--set", "task.samples=8"),
    *("--set", "task.model=softmax", "--set", "method.name=fedavg", "--workers", "0", "-q"),
]


@pytest.fixture(scope="module")
def task():
    return small_task(clients=3, samples=8)


@pytest.fixture
def old(task, tmp_path):
    """A finished run."""
    run_small(task, "fedavg", tmp_path / "run", rounds=2)
    return tmp_path / "run"


def command(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


class TestOverwrite:
    @pytest.mark.parametrize(
        "refused",
        [
            ["--set", "method.name=ipfl-plus", "--set", "method.payment.opening=9000000000000000000"],
            ["--set", "task.model=no_such_module:model"],
        ],
    )
    def test_what_cannot_begin_leaves_the_earlier_run(self, old, refused):
        before = run_contents(old)
        done = command("run", *SMALL_RUN, "--out", old, "--overwrite", *refused)
        assert done.exit_code == 2, done.output
        assert run_contents(old) == before

    def test_what_cannot_begin_leaves_no_folder(self, tmp_path):
        out = tmp_path / "new" / "folder"
        assert command("run", *SMALL_RUN, "--out", out, "--set", "train.lr=1e300").exit_code == 2
        assert list(tmp_path.iterdir()) == []


class TestHalfFolders:
    @pytest.mark.parametrize("name", ["run.db", "metrics.jsonl"])
    def test_a_folder_without_a_committed_opening_counts_as_empty(self, task, tmp_path, name):
        (tmp_path / name).write_bytes(b"")
        assert not holds_run(tmp_path)
        assert run_small(task, "fedavg", tmp_path, rounds=1).summary["rounds"] == 1

    def test_a_file_that_is_no_store_is_not_written_over(self, task, tmp_path):
        (tmp_path / "run.db").write_bytes(b"a diary of somebody" * 100)
        with pytest.raises(InputError, match="already holds a run"):
            run_small(task, "fedavg", tmp_path, rounds=1)


class TestLock:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch):
        monkeypatch.setattr(folder_lock, "LOCK_SECONDS", 0.1)

    @pytest.mark.parametrize("how", ["resume", "overwrite"])
    def test_two_processes_at_once(self, task, old, how):
        before = run_contents(old)
        lock = FolderLock(old)
        try:
            with pytest.raises(InputError, match="another process is at work in"):
                run_small(task, "fedavg", old, rounds=2, **{how: True})
        finally:
            lock.release()
        assert run_contents(old) == before
        run_small(task, "fedavg", old, rounds=2, resume=True)

    def test_it_ends_with_its_process(self, tmp_path):
        child = os.fork()
        if child == 0:
            held = FolderLock(tmp_path)
            os._exit(0 if held and is_locked(tmp_path) else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "it held the lock"
        assert not is_locked(tmp_path)

    def test_two_comparisons_at_once(self, tmp_path):
        plan = ["--methods", "fedavg", *SMALL_RUN, "--out", tmp_path / "compare"]
        assert command("compare", *plan).exit_code == 0
        lock = FolderLock(tmp_path / "compare")
        assert command("compare", "--resume", tmp_path / "compare", "-q").exit_code == 2
        lock.release()


class TestExitCodes:
    @pytest.mark.parametrize(
        "bad",
        [
            ["--out", "a\0b"],
            ["--out", "x" * 300],
            ["--out", "\x07"],
            ["--workers", "99999"],
            ["--set", "task.dataset=raising_data:make"],
            ["--set", "method.name=fedprox", "--set", "method.mu=1e300"],
            ["--set", "train.min_clients=4"],  # of three
        ],
    )
    def test_bad_input_of_any_kind_is_2(self, tmp_path, monkeypatch, bad):
        monkeypatch.chdir(tmp_path)
        Path("raising_data.py").write_text("def make():\n    raise KeyError('x')\n")
        done = command("run", *SMALL_RUN, *bad)
        assert (done.exit_code, len(done.output.splitlines())) == (2, 1), done.output
        assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["raising_data.py"]

    @pytest.mark.parametrize("kind", ["pipe", "folder"])
    def test_a_config_that_is_no_file(self, tmp_path, kind):
        path = tmp_path / "config.toml"
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        done = command("run", path, *SMALL_RUN, "--out", tmp_path / "out")
        assert (done.exit_code, "is not a file" in done.output) == (2, True)

    @pytest.mark.parametrize("words", [["--signing-key", "bank.accounts.json"], ["--accounts", "bank"]])
    def test_a_pipe_is_not_waited_for(self, tmp_path, monkeypatch, words):
        monkeypatch.chdir(tmp_path)
        os.mkfifo("bank.accounts.json")
        done = command("run", *SMALL_RUN, *words, "--set", "method.name=ipfl-plus", "--out", "out")
        assert (done.exit_code, "is not a file" in done.output) == (2, True)
        assert not Path("out").exists()

    @pytest.mark.parametrize("words", [["run"], ["compare", "--methods", "fedavg"]])
    def test_0_needs_a_round_that_counted(self, tmp_path, words):
        """One of three clients trains, and three are needed: every round is rolled back."""
        done = command(*words, *SMALL_RUN, "--set", "train.min_clients=3", "--out", tmp_path / "out")
        assert (done.exit_code, "no round counted" in done.output) == (1, True)

    @pytest.mark.parametrize(
        "bad",
        [
            ["--methods", " ,"],
            ["--seeds", "1000000000000"],
            ["--seed", f"{2**63 - 1}", "--seeds", "2"],
        ],
    )
    def test_a_comparison_without_methods_or_an_end(self, tmp_path, bad):
        plan = ["--methods", "fedavg", *SMALL_RUN, *bad, "--out", tmp_path / "out"]
        done = command("compare", *plan)
        assert (done.exit_code, done.output.count("\n"), (tmp_path / "out").exists()) == (2, 1, False)


class TestTrust:
    """A folder from elsewhere: whose method, model or data is code imports nothing by itself."""

    @pytest.fixture
    def foreign(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("foreign_model.py").write_text(
            "from pathlib import Path\nfrom ipfl.training.architectures import Softmax\n"
            "Path('imported').write_text('')\ndef model(shape, classes): return Softmax(shape, classes)\n"
        )
        done = command("run", *SMALL_RUN, "--set", "task.model=foreign_model:model", "--out", "run")
        assert done.exit_code == 0, done.output
        Path("imported").unlink()
        del sys.modules["foreign_model"]
        plugins._own_code.clear()  # as in another process
        return Path("run")

    def test_resume_and_personalize(self, foreign, tmp_path):
        np.savez("mine.npz", x=np.zeros((3, 8, 8, 1), np.float32), y=np.arange(3))
        personalize = ["personalize", foreign, "--data", "mine.npz", "--out", "mine.safetensors"]
        export = ["export", foreign, "global"]
        for refused in (["run", "--resume", foreign, "-q"], personalize, export):
            done = command(*refused)
            assert (done.exit_code, "use --trust" in done.output) == (2, True), done.output
            assert not Path("imported").exists()
        assert command(*personalize, "--trust").exit_code == 0
        assert Path("imported").exists()
        assert command("run", "--resume", foreign, "-q", "--workers", "0", "--trust").exit_code == 0

    def test_in_python(self, foreign):
        with pytest.raises(InputError, match=r"names code to import \(foreign_model:model\)"):
            FinishedRun.open(foreign)
        with pytest.raises(InputError, match="use trust=True"):
            ipfl.load(foreign)
        assert not Path("imported").exists()
        assert ipfl.load(foreign, trust=True).model("global") is not None
        assert Path("imported").exists()

    def test_a_run_of_this_process_may_be_read_again(self, foreign):
        done = command("run", *SMALL_RUN, "--set", "task.model=foreign_model:model", "--out", "own")
        assert done.exit_code == 0
        assert ipfl.load("own").model("global") is not None
        with pytest.raises(InputError, match="os:system"):
            plugins.refuse_code({"method": {"name": "os:system"}}, foreign)
