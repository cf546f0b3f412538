"""Processes of the console: started, counted, stopped; what a failed one said. The command is a stand-in."""

import ast
import time

import pytest
from fastapi.testclient import TestClient
from tests.console.conftest import make_worked
from tests.small_runs import run_small, small_task

from ipfl.config.run_config import Config
from ipfl.console import starting
from ipfl.console.access import Access
from ipfl.console.app import make_app
from ipfl.console.console import Console
from ipfl.console.form import CODE_MARK, StartRequest, make_form, read_form
from ipfl.console.live import watch_list
from ipfl.console.records import RunRow
from ipfl.console.run_list import FoundRun, RunList
from ipfl.console.starting import Starter
from ipfl.errors import InputError
from ipfl.keep.file_names import PLAN_FILE, STOP_REQUEST_FILE
from ipfl.keep.run_folder import request_stop
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.system.files import FolderLock

WAITS = """import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print("up", flush=True)
time.sleep(60)
"""
FAILS = "import sys; print('working'); sys.exit('error: no such data set')"


@pytest.fixture
def starter(tmp_path):
    found = Starter(RunList(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    yield found
    for process in found._processes.values():
        process.kill()
        process.wait()


def plan(name):
    return StartRequest(name, ("fedavg",), ("rounds=2",))


def wait_until(is_so):
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it does not happen")


def run_in(starter, name):
    return FoundRun(name, name, str(starter.folder / name), None, starter.folder / name)


class TestStarting:
    """What the list says of a command between its start and its first entry in a store."""

    def list_of(self, starter):
        app = make_app(Console(starter.runs, Access(None)))
        app.state.console.starter = starter
        web = TestClient(app, base_url="http://127.0.0.1", headers={"hx-request": "true"})
        return web.get("/?text=mine").text

    def test_it_is_starting_until_a_run_is_there(self, starter, monkeypatch):
        monkeypatch.setattr(starting, "MAIN", WAITS)
        assert "No runs yet" in self.list_of(starter)
        starter.start(plan("mine"))
        assert starter.starting() == ["mine"]
        shown = self.list_of(starter)
        assert "<strong>mine</strong> is starting" in shown
        assert "No run" not in shown
        make_worked(starter.folder / "mine-too")
        starter.runs.forget()
        assert starter.starting() == ["mine"], "another run with a longer name"
        make_worked(starter.folder / "mine/fedavg/seed-0")
        starter.runs.forget()
        assert starter.starting() == []
        assert "is starting" not in self.list_of(starter)

    def test_the_live_list_is_told_that_it_failed(self, starter, monkeypatch, tmp_path):
        go = tmp_path / "go"
        waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        monkeypatch.setattr(starting, "MAIN", waits + FAILS)
        look = watch_list(starter.runs, starter)
        starter.start(plan("mine"))
        before = look()
        go.touch()
        wait_until(lambda: starter.alive() == [])
        assert look() != before
        assert "<strong>mine</strong> could not run: error: no such data set" in self.list_of(starter)


def test_stop_is_an_interrupt(starter, monkeypatch):
    monkeypatch.setattr(starting, "MAIN", WAITS)
    assert starter.start(plan("mine")).key == "mine"
    log = starter.folder / ".console/mine.log"
    wait_until(lambda: log.read_text() == "up\n")
    mine = run_in(starter, "mine")
    assert starter.can_stop(mine)
    assert not starter.can_stop(run_in(starter, "other"))
    with pytest.raises(InputError, match="under way"):
        starter.resume(mine)
    starter.stop(mine)
    wait_until(lambda: starter.alive() == [])
    assert "KeyboardInterrupt" in log.read_text()
    row = RunRow(key="mine", name="mine", state="unfinished")
    assert starter.can_resume(mine, row)
    assert not starter.can_resume(mine, row.model_copy(update={"state": "finished"}))
    assert starter.resume(mine).name == "mine"
    assert starter._processes["mine"].args[-3:] == ["run", "--resume", str(starter.folder / "mine")]


class TestOtherProcesses:
    """Runs that a terminal began: told apart by who holds their folder, stopped by a request in it."""

    def test_stop_and_resume(self, starter, monkeypatch):
        monkeypatch.setattr(starting, "MAIN", WAITS)
        folder = starter.folder / "theirs"
        folder.mkdir()
        theirs = run_in(starter, "theirs")
        with pytest.raises(InputError, match="no process is at work"):
            starter.stop(theirs)
        lock = FolderLock(folder)
        assert starter.can_stop(theirs)
        assert starter.runs.is_running(theirs, 1)
        starter.stop(theirs)
        assert (folder / STOP_REQUEST_FILE).exists()
        lock.release()
        assert not starter.runs.is_running(theirs, 1)
        row = RunRow(key="theirs", name="theirs", state="unfinished")
        assert starter.can_resume(theirs, row)
        starter.resume(theirs)
        assert starter._processes["theirs"].args[-3:] == ["run", "--resume", str(folder)]

    def test_a_run_of_a_comparison(self, starter, monkeypatch):
        """Stopped by itself, which ends the comparison; resumed with all of it."""
        monkeypatch.setattr(starting, "MAIN", WAITS)
        comparison = starter.folder / "study" / "both"
        (comparison / "ifca" / "seed-0").mkdir(parents=True)
        (comparison / PLAN_FILE).write_text("{}")
        one = run_in(starter, "study/both/ifca/seed-0")
        row = RunRow(key="x", name="x", state="unfinished")
        lock = FolderLock(comparison)
        assert not starter.can_resume(one, row)
        lock.release()
        assert starter.can_resume(one, row)
        starter.resume(one)
        assert starter._processes["study/both"].args[-3:] == ["compare", "--resume", str(comparison)]
        assert (starter.folder / ".console/study~both.log").exists()

    def test_the_run_ends_after_its_round(self, tmp_path):
        """Request of before is forgotten, one in round 1 is met before round 2, and the run can go on."""
        (tmp_path / "run").mkdir()
        request_stop(tmp_path / "run")

        class Requester:
            def start(self, method, rounds): ...
            def finish(self): ...
            def round(self, line):
                if line["round"] == 1:
                    request_stop(tmp_path / "run")

        task = small_task()
        with pytest.raises(KeyboardInterrupt, match="interrupted after 2 of 4 rounds"):
            run_small(task, "fedavg", tmp_path / "run", rounds=4, observer=Requester())
        assert not (tmp_path / "run" / STOP_REQUEST_FILE).exists()
        whole = run_small(task, "fedavg", tmp_path / "run", rounds=4, resume=True)
        assert (whole.summary["interrupted"], whole.summary["rounds"]) == (False, 4)


def test_no_more_than_four_at_a_time(starter, monkeypatch):
    monkeypatch.setattr(starting, "MAIN", WAITS)
    for number in range(4):
        starter.start(plan(f"run-{number}"))
    with pytest.raises(InputError, match="4 runs of this console are under way"):
        starter.start(plan("run-4"))


def test_failure_tells_the_last_line(starter, monkeypatch):
    monkeypatch.setattr(starting, "MAIN", FAILS)
    starter.start(plan("mine"))
    wait_until(lambda: starter.alive() == [])
    assert starter.failures() == {"mine": "error: no such data set"}


def test_console_of_a_database_starts_nothing():
    with pytest.raises(InputError, match="--runs DIR"):
        Starter(RunList(None, "sqlite:///x.db")).start(plan("mine"))


class TestForm:
    def test_has_every_setting_but_paths_and_the_method(self):
        form = make_form()
        shown = {field.key for part in (form.first, *form.sections.values()) for field in part}
        content = Config().model_dump(mode="json")
        every = {
            f"{name}.{key}" if isinstance(value, dict) else name
            for name, value in content.items()
            for key in (value if isinstance(value, dict) else [""])
        }
        assert shown == every - {"task.path", "task.data_dir", "method.name"}

    def test_hyperparameters_of_chosen_methods(self):
        given = {"name": ["a"], "ipfl:price": ["50"], "fedprox:mu": ["0.5"], "ditto:lam": ["1.0"]}
        one = read_form({**given, "methods": ["fedprox"]})
        assert one.sets == ("method.name=fedprox", "method.mu=0.5")
        both = read_form({**given, "methods": ["ipfl-plus", "ditto"]})
        assert both.arguments("x")[:3] == ["compare", "--methods", "ipfl-plus:price=50,ditto"]
        with pytest.raises(InputError, match="greater than or equal to 0"):
            read_form({"name": ["a"], "methods": ["ditto"], "ditto:lam": ["-1"]})
        with pytest.raises(InputError, match="in a terminal"):
            read_form(
                {"name": ["a"], "methods": ["ipfl-plus", "ditto"], "ipfl:robust": ['["clip", "noise"]']}
            )

    def test_kinds_and_limits_come_from_the_schema(self):
        form = make_form()
        fields = {field.key: field for part in (form.first, *form.sections.values()) for field in part}
        assert (fields["rounds"].kind, fields["rounds"].default, fields["rounds"].minimum) == (
            "integer",
            "30",
            1,
        )
        assert (fields["train.momentum"].kind, fields["train.momentum"].maximum) == ("number", 1)
        assert (fields["clients.leave"].kind, fields["clients.leave"].default) == ("boolean", "false")
        assert fields["aggregate.rule"].choices[:2] == ("mean", "trimmed_mean")
        assert fields["evaluate.every"].kind == "text"  # a number, or auto

    def test_the_filled_in_defaults_are_the_default_run(self):
        form = make_form()
        fields = [field for part in (form.first, *form.sections.values()) for field in part]
        filled = {field.key: [field.default] for field in fields} | {"name": ["a"], "methods": ["ipfl-plus"]}
        assert read_form(filled) == StartRequest("a", ("ipfl-plus",), ())

    def test_is_made_without_parsing_source(self, monkeypatch):
        """Requests come in threads; in two at once `ast.parse` of Python 3.11 may raise SystemError."""
        monkeypatch.setattr(ast, "parse", lambda *_, **__: pytest.fail("source was parsed"))
        make_form.cache_clear()
        assert make_form().methods["fedavg"] == FedAvg.summary

    def test_settings_that_can_name_code_say_so(self):
        """By their descriptions the form refuses it."""
        form = make_form()
        fields = {field.key: field for part in (form.first, *form.sections.values()) for field in part}
        for key in ("train.optimizer", "train.augment", "train.loss", "evaluate.metrics"):
            assert CODE_MARK in fields[key].description

    def test_no_data_sets_that_read_a_file(self):
        (dataset,) = (field for field in make_form().first if field.key == "task.dataset")
        assert {"digits", "cifar10"} <= set(dataset.choices)
        assert not {"npz", "csv", "parquet", "images"} & set(dataset.choices)

    def test_samples_that_are_shown_are_those_that_are_used(self):
        given = {"name": ["a"], "methods": ["ipfl-plus"], "task.dataset": ["cifar10"], "task.samples": ["60"]}
        assert read_form(given).sets == ("task.dataset=cifar10", "task.samples=60")
