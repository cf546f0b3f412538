"""Flower nodes in this process: the local engine's results, and a clean end however a run ends."""

import json
import re
import runpy
from pathlib import Path

import pytest
from tests.engines.flower.loopback import context_of, run
from tests.small_runs import ask_anything

from ipfl import RunOutput
from ipfl.client.runner import ClientFailedError
from ipfl.config.run_config import EvaluateConfig
from ipfl.config.whole_config import Config
from ipfl.core import Record
from ipfl.engines.flower.simulation import simulation_engine

CLIENTS, ROUNDS = 6, 3


def config(name, **changes):
    return Config(
        rounds=ROUNDS,
        task={"clients": CLIENTS, "samples": 20, "test_samples": 20, **changes},
        method={"name": name},
        evaluate=EvaluateConfig(every=2),
    )


def without_traffic(history):
    return [{k: v for k, v in line.items() if k not in ("bytes_down", "bytes_up")} for line in history]


@pytest.mark.parametrize("name", ["fedavg", "ditto+adapt", "fedper", "ipfl", "ipfl-plus"])
def test_same_models_as_the_local_engine(name):
    """Every figure and every bit of every model."""
    settings = config(name, model="mlp", unseen=1)
    local, flower = run(settings), run(settings, simulation_engine(settings.task))
    assert flower.models.keys() == local.models.keys()
    assert all(flower.models[k].tobytes() == local.models[k].tobytes() for k in local.models)
    assert flower.evaluations == local.evaluations
    assert without_traffic(flower.history) == without_traffic(local.history)


def test_either_engine_goes_on_with_the_others_run(tmp_path):
    settings = config("ipfl-plus", model="softmax")
    whole = run(settings)
    flower = simulation_engine(settings.task)
    for first, second in ((flower, None), (None, flower)):
        out = tmp_path / str(first is None)
        run(settings.model_copy(update={"rounds": 2}), first, out)
        result = run(settings, second, RunOutput(out, resume=True))
        assert all(result.models[k].tobytes() == whole.models[k].tobytes() for k in whole.models)


def test_a_client_that_raises_ends_the_run_with_its_traceback():
    settings = config("fedavg", model="softmax")
    engine = simulation_engine(settings.task)(context_of(settings))
    with pytest.raises(ClientFailedError, match=r"(?s)client 0 failed:.*Traceback.*KeyError: 'global'"):
        engine.ask(ask_anything("train", {0: Record()}), 0)
    engine.close()


MINE = '''
"""A user's own code, as Flower's tutorials have it: a module, and a loader for one part of the data."""
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(4 * 6 * 6, 10)

    def forward(self, x):
        assert x.shape[1:] == (1, 8, 8)
        return self.out(torch.relu(self.conv(x)).flatten(1))


def load_data(part, parts):
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x[part::parts] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(y[part::parts])
    train, test = TensorDataset(x[100:300], y[100:300]), TensorDataset(x[:100], y[:100])
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test)
'''


@pytest.mark.slow
def test_the_example_for_an_app_of_ones_own(tmp_path, monkeypatch, capsys):
    document = (Path(__file__).parents[3] / "docs" / "flower.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", document, re.S)
    assert len(example.splitlines()) < 30
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "app.py").write_text(example)
    (tmp_path / "ipfl.toml").write_text("rounds = 2\n[train]\nepochs = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path("app.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"^ipfl: 2 of 2 rounds: 4 clients, [\d,]+ bytes down", printed, re.M), printed
    assert float(re.search(r"^accuracy ([\d.]+)%$", printed, re.M)[1]) > 50
    summary = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    assert summary["input_shape"] == [8, 8, 1]
    assert summary["classes"] == 10
    assert summary["report"]["balances"]
