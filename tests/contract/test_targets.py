"""Every method on targets that are no classes: it runs to the end with usable models, or refuses on one line.

Nothing here knows any method; what a good prediction is, `ipfl.data.target_kinds` says.
"""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from tests.contract.plays import digest
from tests.federation import run_here
from tests.small_nets import small_model

import ipfl
from ipfl.errors import InputError
from ipfl.methods import method_reference
from ipfl.training.architectures import model_factory
from ipfl.training.task import Task


@cache
def make_task(target: str, model: str = "softmax") -> Task:
    """Two kinds of clients, whose targets are opposite functions of the same points."""
    rng = np.random.default_rng(0)
    clients = []
    for client in range(6):
        x = rng.normal(size=(24, 3)).astype(np.float32)
        signs = 1 if client % 2 else -1
        y = 50 + 20 * signs * x[:, 0] if target == "regression" else (signs * x[:, :2] > 0).astype(np.int64)
        clients.append((x, y))
    return Task.from_clients(
        clients, predict=target, model=model_factory(model), distribution=[0, 1] * 3, unseen=[5], seed=1
    )


TARGETS = ("multilabel", "regression")


@pytest.mark.parametrize("target", TARGETS)
def test_runs_or_refuses(method, target):
    task = make_task(target, small_model(method_reference(method)))
    if method.needs_classes:
        refusal = f"'{method.name}' needs classes, but the task's target is '{target}'"
        with pytest.raises(InputError, match=refusal):
            run_here(task, method, rounds=1)
        return
    here, again = (run_here(task, method, rounds=2, evaluate={"every": 1}) for _ in range(2))
    assert digest(here.evaluations) == digest(again.evaluations)
    for model in here.models.values():
        assert np.isfinite(model).all()
    assert here.last is not None
    assert all(0 < value <= 1 for value in here.last.personalized.values())
    names = {"regression": {"mae", "r2"}, "multilabel": {"macro_f1"}}[target]
    assert set(here.summary["metrics"]) == names
    assert set(here.summary["metrics_per_client"][min(names)]) == set(task.data.clients)
    assert here.summary["target"]["kind"] == target
    assert json.dumps(here.summary, allow_nan=False)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rule", ["agreement", "paper"])
def test_contributions_of_the_market(target, rule):
    """Each way to value an update."""
    method = ipfl.method("ipfl-plus", contribution={"rule": rule})
    result = run_here(make_task(target), method, rounds=2)
    worth = [row.psi for line in result.history for row in line.get("contributions", ())]
    assert worth
    assert all(np.isfinite(psi) for psi in worth if psi is not None)
