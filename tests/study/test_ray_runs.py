"""Runs of a comparison as Ray tasks: the same bytes, and what is said of a run that dies or is stopped."""

import importlib.util
import json
import threading

import numpy as np
import pytest
import torch
from tests.play.killed_runs import run_contents
from tests.study.small_study import Log, config
from torch import nn
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.config.run_config import RunConfig
from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE
from ipfl.methods import DEFAULT, REFERENCE
from ipfl.study.comparison import compare
from ipfl.study.ray_runs import _play, ray_pool
from ipfl.study.study_run import StudyRun
from ipfl.training.task import Task

OWN_METHODS = f'''
import os, signal, time
from pydantic.dataclasses import dataclass
from ipfl.methods import method_class

@dataclass(frozen=True)
class Killed(method_class("{REFERENCE}")):
    name = "killed"
    def round(self, state, roster, round):
        os.kill(os.getpid(), signal.SIGKILL)
        yield

@dataclass(frozen=True)
class Slow(method_class("{REFERENCE}")):
    name = "slow"
    def round(self, state, roster, round):
        if round:
            while True: time.sleep(0.01)
        return (yield from super().round(state, roster, round))
'''


@pytest.fixture
def own_methods(tmp_path, monkeypatch):
    """A module in the current folder, as a user has it."""
    (tmp_path / "own_methods.py").write_text(OWN_METHODS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.slow
@pytest.mark.waits
@pytest.mark.usefixtures("own_methods")
class TestRay:
    def test_the_same_bytes_and_a_task_that_dies(self, tmp_path):
        log = Log()
        names = [DEFAULT, "own_methods:Killed"]
        ray = compare(config(), names, out=tmp_path / "ray", make_observer=log, make_pool=ray_pool(2))
        (why,) = ray.entries["own_methods:Killed"].failures.values()
        assert why.startswith("the Ray task of this run failed: ")
        assert not ray.interrupted
        compare(config(), [DEFAULT], out=tmp_path / "local", workers=0)
        for name in (DEFAULT, REFERENCE):
            ours, theirs = (tmp_path / engine / name / "seed-0" for engine in ("ray", "local"))
            assert run_contents(ours) == run_contents(theirs)
        assert log.told[DEFAULT] == [("start", DEFAULT, 2), ("round", 0), ("round", 1), ("finish",)]

    def test_ctrl_c(self, tmp_path):
        """On a task given in Python, whose network only this function knows.

        The run never ends its second round; Ray raises KeyboardInterrupt in it between two statements.
        """

        def network(shape, classes):
            return nn.Linear(shape[0], classes)

        log = Log(stop_in="own_methods:Slow")
        points = np.arange(32, dtype=np.float32).reshape(16, 2)
        task = Task.from_clients([(points, np.arange(16) % 2)] * 3, model=network)
        done = compare(
            RunConfig(rounds=2),
            ["own_methods:Slow"],
            task=task,
            out=tmp_path / "out",
            make_observer=log,
            make_pool=ray_pool(1),
        )
        assert done.interrupted
        (why,) = done.entries["own_methods:Slow"].failures.values()
        assert why.startswith("interrupted")
        (reference,) = done.entries[REFERENCE].results.values()
        assert reference.summary["clients"] == 3
        assert reference.model(1)(torch.tensor(points)).shape == (16, 2)
        assert json.loads((tmp_path / "out" / COMPARISON_FILE).read_text())["interrupted"] is True


class TestRefused:
    def test_ray_is_not_installed(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(InputError, match=r'pip install "ipfl\[ray\]"'):
            ray_pool()

    def test_a_task_that_cannot_be_sent(self):
        lock = threading.Lock()

        def make_task(seed):
            with lock:
                return Task.build(config().task, seed)

        with pytest.raises(InputError, match="cannot be pickled: TypeError: cannot pickle"):
            compare(RunConfig(), [REFERENCE], task=make_task, make_pool=ray_pool(1))

    def test_no_workers(self):
        done = CliRunner().invoke(app, ["compare", "--engine", "ray", "--workers", "0"])
        assert done.exit_code == 2
        assert "at least one worker" in done.stderr

    def test_a_folder_that_the_machine_does_not_share(self, tmp_path):
        method = config().build_method(REFERENCE)
        run = StudyRun("k", REFERENCE, method, config(), folder=tmp_path / "out" / REFERENCE / "seed-0")
        failure = _play(run, None, 0, None, []).failure
        assert failure.startswith(f"{tmp_path / 'out'} is not on the machine ")
        assert failure.endswith("a cluster needs a folder that all its machines share")
