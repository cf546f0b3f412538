"""The command line: what it prints, where results go, and how it ends when something is wrong."""

import ast
import json
import os
import resource
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from pydantic.dataclasses import dataclass
from tests.failing_methods import Stopped, add_methods
from tests.small_runs import run_small, small_task
from typer.testing import CliRunner

from ipfl import __version__, methods
from ipfl.cli import app
from ipfl.config.whole_config import Config
from ipfl.ledger.store import RunStore
from ipfl.methods import DEFAULT, REFERENCE, method_class
from ipfl.training.task import Task

IPFL = str(Path(sys.executable).with_name("ipfl"))
TINY = ["--workers", "0", "--set", "rounds=2", "--set", "task.model=softmax", "--set", "task.clients=4"]


def ipfl(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments):
    """The complaint about bad input: one line on stderr, exit code 2."""
    done = ipfl(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test has a current folder of its own, and no data but what is bundled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("IPFL_DEBUG", raising=False)
    monkeypatch.delenv("IPFL_DATA", raising=False)


@dataclass(frozen=True)
class Broken(method_class(REFERENCE)):
    """A method whose client side is wrong."""

    name = "broken"

    def on_train(self, ask, mine, me):
        raise RuntimeError("no luck today")


@pytest.fixture
def stand_ins(monkeypatch):
    add_methods(monkeypatch, Broken, Stopped)


class TestRun:
    def test_table_and_folder(self, tmp_path):
        done = ipfl("run", *TINY, "--out", "out", "--seed", 3)
        assert done.exit_code == 0
        assert "digits, 10:90, 4 clients, seed 3" in done.stdout
        assert "Results in out" in done.stdout
        assert f"{DEFAULT}: 2 of 2 rounds, accuracy" in done.stderr
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert (summary["method"], summary["seed"], summary["rounds"]) == (DEFAULT, 3, 2)
        assert summary["config"]["task"]["model"] == "softmax"
        assert summary["config"]["method"]["clusters"] == 2
        assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 2
        assert "already holds a run" in refused("run", *TINY, "--out", "out")
        again = ipfl("run", *TINY, "--out", "out", "--quiet", "--overwrite")
        assert (again.exit_code, again.output) == (0, "")
        assert json.loads((tmp_path / "out" / "summary.json").read_text())["seed"] == 0

    def test_a_config_file_with_sets_in_a_new_folder_each_time(self, tmp_path):
        (tmp_path / "my.toml").write_text(f'[method]\nname = "{REFERENCE}"\n')
        for _ in range(2):
            assert ipfl("run", "my.toml", *TINY, "--quiet", "--set", "task.partition=30:70").exit_code == 0
        folders = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
        assert folders == [f"{REFERENCE}-seed-0", f"{REFERENCE}-seed-0-2"]
        summary = json.loads((tmp_path / "runs" / folders[0] / "summary.json").read_text())
        assert (summary["method"], summary["partition"]) == (REFERENCE, "30:70")

    def test_show_config(self, tmp_path):
        done = ipfl("run", "--show-config", "--set", "rounds=7")
        assert done.exit_code == 0
        assert tomllib.loads(done.stdout)["rounds"] == 7
        assert "# number of rounds\nrounds = 7" in done.stdout
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "all.toml").write_text(ipfl("run", "--show-config").stdout)
        assert Config.load(tmp_path / "all.toml").build_method() == Config().build_method()


class TestCompare:
    def test_table_and_files(self, tmp_path):
        methods = ["--methods", f"{DEFAULT},{REFERENCE}", "--reference", "local"]
        done = ipfl("compare", *TINY, *methods, "--seeds", 2, "--out", "out")
        assert done.exit_code == 0, done.output
        assert "mean of 2 seeds" in done.stdout
        assert "Results in out; figures: ipfl report out" in done.stdout
        assert f"6/6 {REFERENCE}, seed 1: 2 of 2 rounds" in done.stderr
        rows = {row.split()[0]: row.split()[1:] for row in done.stdout.splitlines() if row.strip()}
        assert "reference" in rows["local"]
        assert "reference" not in rows[REFERENCE]
        content = json.loads((tmp_path / "out" / "compare.json").read_text())
        assert (list(content["methods"]), content["reference"]) == ([DEFAULT, REFERENCE, "local"], "local")
        assert content["methods"][REFERENCE]["pma"] is not None
        assert content["methods"]["local"]["pma"] is None
        assert "already holds a run" in refused("compare", *TINY, "--methods", REFERENCE, "--out", "out")
        assert ipfl("compare", "--resume", "out", "--quiet").exit_code == 0
        assert json.loads((tmp_path / "out" / "compare.json").read_text())["reference"] == "local"
        assert "--resume keeps the settings" in refused("compare", "--resume", "out", "--reference", "local")
        assert "nope" in refused("compare", *TINY, "--methods", REFERENCE, "--reference", "nope")

    @pytest.mark.usefixtures("stand_ins")
    def test_a_failure_is_told_at_the_end(self):
        done = ipfl("compare", *TINY, "--methods", f"broken,{REFERENCE}", "--out", "out")
        assert done.exit_code == 1
        assert "error: broken, seed 0: RuntimeError: no luck today" in done.stderr
        rows = {row.split()[0]: row.split()[1:] for row in done.stdout.splitlines() if row.strip()}
        assert rows["broken"] == ["failed"]
        assert "reference" in rows[REFERENCE]

    @pytest.mark.usefixtures("stand_ins")
    def test_ctrl_c(self):
        done = ipfl("compare", *TINY, "--methods", f"stopped,{DEFAULT}", "--out", "out")
        assert done.exit_code == 130
        assert "error: interrupted; results so far in out" in done.stderr
        assert "not run" in done.stdout


class TestLists:
    @pytest.mark.parametrize(
        "command, shown",
        [
            ("methods", methods.METHODS),
            ("datasets", ("digits", "cifar10", "emnist", "har", "npz", "bundled")),
            ("partitions", ("rotated[:d]", "permuted", "halves", "linear", "classes:c", "dirichlet:alpha")),
        ],
    )
    def test_all_there_is(self, command, shown):
        done = ipfl(command)
        assert done.exit_code == 0
        assert [name for name in shown if name not in done.stdout] == []

    def test_one_method(self):
        done = ipfl("methods", DEFAULT)
        assert done.stdout.startswith(f"{DEFAULT}: ")
        assert "clusters" in done.stdout
        assert "no hyper-parameters" in ipfl("methods", REFERENCE).stdout

    def test_data_sets_say_where_they_are(self, tmp_path, monkeypatch):
        (tmp_path / "cifar10.npz").touch()
        monkeypatch.setenv("IPFL_DATA", str(tmp_path))
        done = ipfl("datasets")
        assert f"here: {tmp_path / 'cifar10.npz'}\n" in done.stdout
        assert "licence: " in done.stdout

    def test_data_fetch(self):
        assert ipfl("data", "fetch", "digits").stdout == "digits is bundled: nothing to download\n"
        assert "unknown data set 'digit'; did you mean 'digits'?" in refused("data", "fetch", "digit")


class TestBadInput:
    @pytest.mark.parametrize(
        "sets, part",
        [
            ("lr=0.1", "unknown key 'lr'; did you mean 'train.lr' or 'adapt.lr'?"),
            ("clients=9", "did you mean 'evaluate.clients' or 'task.clients'?"),
            ("incentive=false", "unknown key 'incentive'; did you mean 'method.incentive'?"),
            ("method.clusters=21", "method.clusters = 21, but there are only 20 clients"),
            ("task.model=nope", "unknown model 'nope'"),
            ("task.model=no_such_module:Net", "no_such_module"),
            (
                "method.name=nope",
                f"unknown method 'nope' (known: {', '.join(sorted([*methods.METHODS, 'module:Class']))})",
            ),
            ("clients.leave=true", "needs a reference run"),
        ],
    )
    def test_setting(self, tmp_path, sets, part):
        assert part in refused("run", "--set", sets, "--out", "out")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "arguments, part",
        [
            (["run", "missing.toml"], "missing.toml: No such file"),
            (["run", "--workers", "-1"], "--workers"),
            (["run", "--workers", "two"], "--workers"),
            (["run", "--nope"], "No such option"),
            (["run", "--lr", "0.1"], "No such option '--lr'. It is a setting: --set train.lr or adapt.lr=…"),
            (["nope"], "No such command 'nope'"),
            (["depoy"], "No such command 'depoy'. Did you mean 'deploy'?\n"),
            (["compare", "--seeds", "0"], "--seeds"),
            (["compare", "--methods", REFERENCE, "--set", "method.nope=1"], "unknown key 'method.nope'"),
            (["methods", "nope"], "unknown method 'nope'"),
        ],
    )
    def test_arguments(self, tmp_path, arguments, part):
        assert part in refused(*arguments)
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_a_call_for_help(self):
        assert "Usage:" in ipfl().output


@pytest.mark.usefixtures("stand_ins")
class TestTrouble:
    ARGUMENTS = ("run", "--set", "method.name=broken", *TINY[2:], "--out", "out")

    def test_a_client_s_traceback_is_shown_in_full(self):
        done = ipfl(*self.ARGUMENTS, "--workers", 1)
        assert done.exit_code == 1
        assert "client " in done.stderr
        assert "Traceback (most recent call last)" in done.stderr
        assert 'raise RuntimeError("no luck today")' in done.stderr

    def test_any_other_failure_is_one_line(self):
        done = ipfl(*self.ARGUMENTS, "--workers", 0, "--quiet")
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
        assert "error: RuntimeError: no luck today (test_cli.py:" in done.stderr
        assert "IPFL_DEBUG=1" in done.stderr

    def test_debug_shows_the_traceback(self, monkeypatch):
        monkeypatch.setenv("IPFL_DEBUG", "1")
        assert isinstance(ipfl(*self.ARGUMENTS, "--workers", 0).exception, RuntimeError)


HEAVY = ("torch", "numpy", "pandas", "pydantic", "rich", "matplotlib", "onnx", "sqlite3")


class TestProcess:
    @pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["methods"], ["data", "fetch"]])
    def test_help(self, command):
        done = ipfl(*command, "--help")
        assert done.exit_code == 0
        assert "For example:" in done.stdout

    def test_help_says_what_arguments_are_and_fills_its_lines(self, monkeypatch):
        monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
        shown = ipfl("export", "--help").stdout
        assert "Folder of a finished run." in shown
        assert "An onnx  \n program takes points as they were given" in shown

    @pytest.mark.parametrize(
        "words, allowed",
        [(["--help"], ()), (["methods"], ("rich",)), (["list", "."], ("numpy", "pydantic", "rich"))],
    )
    def test_what_is_quick_waits_for_no_heavy_import(self, words, allowed):
        script = (
            "import atexit, sys; from ipfl.cli import main\n"
            f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules])); main()"
        )
        command = [sys.executable, "-c", script, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert set(ast.literal_eval(done.stdout.splitlines()[-1])) <= set(allowed)
        assert words != ["methods"] or "clients bid with tokens for cluster models" in done.stdout

    def test_the_first_help_is_fast(self, tmp_path):
        """Right after `pip install`, when nothing is compiled yet, Python's own modules included."""
        seconds = []
        for attempt in range(3):
            environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / str(attempt))}
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run([IPFL, "--help"], env=environment, capture_output=True, check=True)
            seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        assert min(seconds) < 0.5  # of a processor: other tests run beside this one

    def test_as_a_module(self):
        done = subprocess.run(
            [sys.executable, "-m", "ipfl", "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"ipfl {__version__}\n"

    def test_ctrl_c(self, tmp_path):
        """SIGINT to the whole group, as a terminal sends it, while workers are busy."""
        sets = ["--set", "rounds=1000000", "--set", "task.model=softmax", "--set", f"method.name={REFERENCE}"]
        command = [IPFL, "run", *sets, "--workers", "2", "--out", "out"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        metrics = tmp_path / "out" / "metrics.jsonl"
        try:
            while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
                assert process.poll() is None
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, complaint = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 130
        assert "interrupted after" in complaint.splitlines()[-1]
        assert "Traceback" not in complaint
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["interrupted"] is True
        assert summary["rounds"] == len(metrics.read_text().splitlines()) >= 2
        assert (tmp_path / "out" / "model" / "global.safetensors").exists()

    def test_a_closed_pipe_is_no_traceback(self):
        done = subprocess.run(
            f"{IPFL} run --show-config | head -n 1", shell=True, capture_output=True, text=True, check=False
        )
        assert (done.stdout.count("\n"), done.stderr) == (1, "")


class TestResume:
    def test_a_run_that_was_begun_in_python(self, tmp_path):
        """Its header has a config, and the task if a config can say it: one data set and one seed for all."""
        own = Task.from_clients([([[0.0], [1.0]] * 4, [0, 1] * 4)] * 2, model="softmax")
        for name, task in (("named", small_task(clients=4)), ("other", small_task(seed=7)), ("own", own)):
            run_small(task, REFERENCE, tmp_path / name, rounds=2)
        assert ipfl("run", "--resume", tmp_path / "named", "--workers", "0").exit_code == 0
        store = RunStore.open(tmp_path / "own")
        assert store.header["config"]["rounds"] == 2
        for name in ("other", "own"):
            assert "begun in Python" in refused("run", "--resume", tmp_path / name)

    def test_ledger_of_a_method_without_tokens(self, tmp_path):
        ipfl("run", *TINY, "--method", REFERENCE, "--quiet", "--out", tmp_path / "run")
        shown = ipfl("ledger", "show", tmp_path / "run")
        assert (shown.exit_code, shown.stdout) == (
            0,
            f"run 'run' has no ledger to show: {REFERENCE} moves no tokens\n",
        )
