"""Real simulations on Ray: the local engine's results, a clean end however a run ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engines.flower.loopback import context_of, run, without_text
from tests.small_runs import ask_anything

from ipfl.client.runner import ClientFailedError
from ipfl.config.run_config import Config, EvaluateConfig
from ipfl.core import Record
from ipfl.engines.flower.flower_engine import FlowerEngine
from ipfl.engines.flower.membership import Membership, NodeDirectory
from ipfl.engines.flower.messages import unpack
from ipfl.engines.flower.node_app import NodeApp, NodeFolders
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.simulation import POLL_SECONDS, START_TIMEOUT_SECONDS, Simulation, engine_on
from ipfl.engines.flower.transport import Transport
from ipfl.errors import InputError
from ipfl.market.market_rows import with_typed_rows

pytestmark = [pytest.mark.slow, pytest.mark.waits]

CLIENTS, ROUNDS = 6, 3


def slow_app(folders, delay):
    """An app whose client 2 is slow to train in round 0, by as many seconds as the file `delay` says.

    The class is local, so that Ray carries it to the nodes.
    """

    class SlowClient(NodeApp):
        def __call__(self, message, context):
            header, _ = unpack(message.content)
            if message.metadata.message_type == "train" and (header["client"], header["round"]) == (2, 0):
                time.sleep(float(delay.read_text()) if delay.exists() else 0)
            return super().__call__(message, context)

    return SlowClient(folders=folders, send_tracebacks=True)


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """Nodes that any run of this file can use: they learn method and task from the server."""
    folder = tmp_path_factory.mktemp("nodes")
    app = slow_app(NodeFolders(folder / "memory", folder / "received"), folder / "delay")
    with closing(Simulation(app, CLIENTS, workers=2)) as simulation:
        simulation.delay = folder / "delay"
        yield simulation


def config(name, **changes):
    return Config(
        rounds=ROUNDS,
        task={"clients": CLIENTS, "samples": 20, "test_samples": 20, **changes},
        method={"name": name},
        evaluate=EvaluateConfig(every=2),
    )


def engine_factory(simulation, config):
    """Runs share the nodes, which therefore keep the memory of each run in a folder of its own."""

    def make_engine(context):
        settings = RunSettings(
            context.method, context.train, config.task, context.seed, classes=None, adapt=config.adapt
        )
        transport = Transport(simulation.grid, None, POLL_SECONDS, simulation.check_alive)
        membership = Membership(transport, NodeDirectory())
        membership.wait_for_clients(
            CLIENTS, START_TIMEOUT_SECONDS, settings, lambda line: None, fail_on_refusal=True
        )
        return FlowerEngine(membership, context.task, settings, context.memory, raise_client_errors=True)

    return make_engine


@pytest.mark.parametrize("name", ["fedavg", "ditto+adapt", "local", "ipfl", "ipfl-plus"])
def test_same_models_as_the_local_engine(simulation, name):
    """Three rounds on digits, with the paper's CNN: every figure and every bit of every model."""
    settings = config(name)
    local, flower = run(settings), run(settings, engine_factory(simulation, settings))
    assert flower.models.keys() == local.models.keys()
    assert all(flower.models[k].tobytes() == local.models[k].tobytes() for k in local.models)
    assert flower.evaluations == local.evaluations
    drop = ("bytes_down", "bytes_up")
    for one, other in zip(flower.history, local.history, strict=True):
        assert {k: v for k, v in one.items() if k not in drop} == {
            k: v for k, v in other.items() if k not in drop
        }


def test_a_client_that_raises_ends_the_run_with_its_traceback(simulation):
    settings = config("fedavg", model="softmax")
    with (
        closing(engine_factory(simulation, settings)(context_of(settings))) as engine,
        pytest.raises(ClientFailedError, match=r"(?s)client 0 failed:.*Traceback.*KeyError: 'global'"),
    ):
        engine.ask(ask_anything("train", {0: Record()}), 0)


def test_settings_that_nodes_cannot_use(simulation, tmp_path):
    settings = config("fedavg")
    broken = settings.model_copy(
        update={"task": settings.task.model_copy(update={"data_dir": tmp_path, "dataset": "emnist"})}
    )
    with pytest.raises(InputError, match="cannot take part"):
        engine_factory(simulation, broken)(context_of(settings))


def test_a_client_that_is_slower_than_the_deadline_is_left_out(simulation, tmp_path):
    """As on the local engine: only in the round in which it is slow, and the others are not affected."""
    slow = Config(
        rounds=2,
        task={"clients": CLIENTS, "model": "softmax"},
        method={"name": "fedavg"},
        train={"per_round": CLIENTS},
        clients={"deadline": 8.0},
    )

    def make_engine(context):
        context = replace(context, memory=tmp_path / "memory")
        return engine_on(simulation, context, slow.task, resources=ExitStack())

    simulation.delay.write_text("12")
    try:
        result = run(slow, make_engine)
    finally:
        simulation.delay.unlink()
    first, second = result.history
    assert without_text(first["events"]) == [("overdue", 2)]
    assert [seat.client for seat in first["seats"] if seat.delivered] == [0, 1, 3, 4, 5]
    assert second["events"] == ()
    assert len(result.last.personalized) == CLIENTS


IPFL = [sys.executable, "-c", "from ipfl.cli import main; main()"]


SMALL = ["--set", f"task.clients={CLIENTS}", "--set", "task.model=softmax", "--nodes", "3"]


def running_processes(group):
    """Processes of a process group that still run, by name."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [row.split(None, 2) for row in listed.stdout.splitlines()]
    return [args for pgid, stat, args in rows if int(pgid) == group and not stat.startswith("Z")]


def wait_until(condition, seconds=300.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.1)


def rounds_in(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@contextmanager
def started(*words, **environment):
    """A command in a process group of its own, of which nothing is left in the end."""
    process = subprocess.Popen(
        [*IPFL, "run", "--engine", "flower", "--workers", "1", *words],
        start_new_session=True,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_rounds(folder, rounds, process):
    wait_until(lambda: rounds_in(folder) >= rounds or process.poll() is not None)
    assert process.poll() is None, process.stderr.read()


class TestEnds:
    def test_ctrl_c_then_resume_then_sigterm(self, tmp_path):
        """Ctrl-C, as a terminal sends it: to the whole group. Going on, the run is as if it never stopped."""
        out = tmp_path / "run"
        with started(*SMALL, "--set", "rounds=1000", "--out", str(out), TMPDIR=str(tmp_path)) as process:
            wait_for_rounds(out, 2, process)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(60) == 130
            assert "interrupted after" in process.stderr.read()
            wait_until(lambda: not running_processes(process.pid), 20)
        assert json.loads((out / "summary.json").read_text())["interrupted"]
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["run", "signing.key"]  # no temporary folder is left
        done = rounds_in(out)
        with started("--resume", str(out), "--nodes", "3", "--quiet") as process:
            wait_for_rounds(out, done + 2, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
            wait_until(lambda: not running_processes(process.pid), 20)
        texts = (out / "metrics.jsonl").read_text().splitlines()
        lines = [with_typed_rows(json.loads(text)) for text in texts]
        whole = run(Config(rounds=len(lines), task={"clients": CLIENTS, "model": "softmax"}))
        for line, expected in zip(lines, whole.history, strict=True):
            assert line["seats"] == expected["seats"]
            assert line["transfers"] == expected["transfers"]

    def test_killed(self, tmp_path):
        """A process that is killed (SIGKILL) can stop nothing itself, and yet leaves nothing that runs."""
        with started(*SMALL, "--set", "rounds=1000", "--out", str(tmp_path / "run"), "--quiet") as process:
            wait_for_rounds(tmp_path / "run", 1, process)
            process.kill()
            process.wait()
            wait_until(lambda: not running_processes(process.pid), 60)


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


def test_the_example_for_an_app_of_ones_own(tmp_path):
    document = (Path(__file__).parents[3] / "docs" / "flower.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", document, re.S)
    assert len(example.splitlines()) < 30
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "app.py").write_text(example)
    (tmp_path / "ipfl.toml").write_text("rounds = 2\n[train]\nepochs = 5\n")
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^2 of 2 rounds: 4 clients, [\d,]+ bytes down", done.stdout, re.M), done.stdout
    assert float(re.search(r"^accuracy ([\d.]+)%$", done.stdout, re.M)[1]) > 50
    summary = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    assert summary["input_shape"] == [8, 8, 1]
    assert summary["classes"] == 10
    assert summary["report"]["balances"]
