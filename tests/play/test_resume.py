"""A run that is killed and resumed ends exactly as one that was left alone: files, models, ledger.

Every killed run is a forked process that dies by SIGKILL, either at a chosen place in the code or after a
random time. Nothing is cleaned up for it.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from tests.play.killed_runs import die_at_call, is_killed, run_contents, run_six_rounds
from tests.small_runs import small_task

import ipfl
from ipfl.errors import InputError
from ipfl.keep.run_folder import holds_run
from ipfl.ledger import store as store_module
from ipfl.ledger.store import RunStore

KILLS = 8
"""At random moments."""


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


@pytest.fixture(scope="module", params=["ipfl-plus", "local"])
def method(request):
    return request.param


@pytest.fixture(scope="module")
def untouched(task, method, tmp_path_factory):
    """What the run comes to if nobody interferes. The folder's name is part of the ledger's hash chain."""
    folder = tmp_path_factory.mktemp("untouched") / "run"
    run_six_rounds(task, method, folder)
    return run_contents(folder)


def test_killed_inside_a_transaction(task, method, untouched, tmp_path):
    """Between two tables of a round, and again after resuming; simulated kills have no such place."""
    out = tmp_path / "run"
    for number in (8, 5):
        assert is_killed(task, method, out, lambda n=number: die_at_call(store_module, "insert_rows", n))
    run_six_rounds(task, method, out, resume=holds_run(out))
    assert run_contents(out) == untouched


@pytest.mark.slow
def test_killed_at_random_moments(task, tmp_path):
    """A run of 25 rounds with worker processes, resumed after each kill."""
    options, chance = {"rounds": 25, "workers": 2}, random.Random(0)
    begun = time.perf_counter()
    run_six_rounds(task, "ipfl-plus", tmp_path / "whole" / "run", **options)
    whole = time.perf_counter() - begun
    out, kills = tmp_path / "run", 0
    while kills < KILLS:
        kills += is_killed(task, "ipfl-plus", out, seconds=chance.uniform(0.02, whole / 4), **options)
        if (out / "summary.json").exists():  # finished before enough kills: tear its end off again
            (out / "summary.json").unlink()
    run_six_rounds(task, "ipfl-plus", out, resume=holds_run(out), **options)
    assert run_contents(out) == run_contents(tmp_path / "whole" / "run")


def test_ctrl_c_in_the_middle_of_a_commit_waits_for_its_end(task, untouched, method, tmp_path, monkeypatch):
    """The third commit is interrupted: the round counts, the run ends, and --resume finishes it."""
    out, commit, calls = tmp_path / "run", RunStore.commit_round, 0

    def interrupted(self, *args):
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGINT)
        commit(self, *args)

    monkeypatch.setattr(RunStore, "commit_round", interrupted)
    with pytest.raises(ipfl.Interrupted) as stopped:
        run_six_rounds(task, method, out)
    result = stopped.value.result
    assert len(result.history) == len((out / "metrics.jsonl").read_text().splitlines()) == 3
    store = RunStore.open(out)
    assert store.last_round() == 2
    monkeypatch.undo()
    run_six_rounds(task, method, out, resume=True)
    assert run_contents(out) == untouched


def test_clients_that_left_stay_away_after_resuming(task, tmp_path):
    """Who left is worked out again from what the rounds before the kill measured on `goal`."""
    evaluate = {"evaluate": ipfl.EvaluateConfig(every=1)}
    reference = run_six_rounds(task, "local", tmp_path / "reference", **evaluate)
    leaving = {"reference": reference, "clients": ipfl.ClientsConfig(leave=True, grace=1), **evaluate}
    whole = run_six_rounds(task, "fedavg", tmp_path / "whole" / "run", **leaving)
    left = [line["clients"] for line in whole.history]
    assert left[-1] < left[0], "or nothing is tested here"
    out = tmp_path / "run"
    place = lambda: die_at_call(RunStore, "commit_round", 4, after=True)  # noqa: E731
    assert is_killed(task, "fedavg", out, place, **leaving)
    resumed = run_six_rounds(task, "fedavg", out, resume=True, **leaving)
    assert [line["clients"] for line in resumed.history] == left
    assert run_contents(out) == run_contents(tmp_path / "whole" / "run")


def test_resuming_a_finished_run_changes_nothing(task, untouched, method, tmp_path):
    out = tmp_path / "run"
    run_six_rounds(task, method, out)
    run_six_rounds(task, method, out, resume=True)
    assert run_contents(out) == untouched


class TestRefused:
    def test_another_method(self, task, tmp_path):
        run_six_rounds(task, "fedavg", tmp_path / "run")
        with pytest.raises(InputError, match="was begun with method fedavg, not ipfl"):
            run_six_rounds(task, "ipfl-plus", tmp_path / "run", resume=True)
        with pytest.raises(InputError, match="was begun with seed 3, not 4"):
            run_six_rounds(task, "fedavg", tmp_path / "run", resume=True, seed=4)
