"""`clients.deadline` of the config holds on Flower as on the local engine: who takes longer is left out."""

import time

import numpy as np
import pytest
from tests.engines.flower.loopback import (
    TINY,
    Loopback,
    context_of,
    engine_factory,
    join_nodes,
    run,
    without_text,
)
from tests.small_runs import ask_anything

from ipfl.client.runner import EVALUATE
from ipfl.config.run_config import EvaluateConfig
from ipfl.config.whole_config import Config
from ipfl.core import Record
from ipfl.deploy.server_app import run_server
from ipfl.deploy.settings_files import ServerConfig
from ipfl.engines.flower.node_app import NodeApp
from ipfl.engines.flower.simulation import simulation_engine

SLOW_NODE, SLOW_CLIENT = 102, 2


class SlowLoopback(Loopback):
    """The replies of one node to `train` come at the third look, or never."""

    def __init__(self, looks=None):
        super().__init__()
        self.looks, self.seen = looks, {}

    def pull_messages(self, message_ids):
        held_back = {key for key in message_ids if self._is_slow(key)}
        return super().pull_messages([key for key in message_ids if key not in held_back])

    def _is_slow(self, key):
        (ask,) = (ask for ask in self.sent if ask.metadata.message_id == key)
        if ask.metadata.dst_node_id != SLOW_NODE or ask.metadata.message_type == "query.hello":
            return False
        self.seen[key] = self.seen.get(key, 0) + 1
        return self.looks is None or self.seen[key] < self.looks


def config(**changes):
    return Config(
        rounds=2,
        task=TINY,
        method={"name": "fedavg"},
        train={"per_round": 6},
        evaluate=EvaluateConfig(every=2),
        **changes,
    )


class TestSimulated:
    def test_who_takes_longer_is_left_out(self, monkeypatch):
        """Others are not; the evaluator waits for everyone. A message lives for a while at least."""

        class SlowApp(NodeApp):
            def __call__(self, message, context):
                if message.metadata.message_type == "train" and context.node_id == SLOW_NODE:
                    time.sleep(0.7)
                return super().__call__(message, context)

        monkeypatch.setattr("ipfl.engines.flower.simulation.NodeApp", SlowApp)
        monkeypatch.setattr("ipfl.engines.flower.transport.MIN_TTL_SECONDS", 0.5)
        result = run(config(clients={"deadline": 0.1}), simulation_engine(TINY))
        for line in result.history:
            assert without_text(line["events"]) == [("overdue", SLOW_CLIENT)]
            assert [seat.client for seat in line["seats"] if seat.delivered] == [0, 1, 3, 4, 5]
        assert len(result.last.personalized) == 6


class TestEngine:
    @pytest.fixture
    def grid(self, tmp_path):
        grid = SlowLoopback()
        join_nodes(grid, tmp_path, 6)
        return grid

    @pytest.mark.parametrize("raises", [False, True])
    def test_late_is_no_error_of_the_client(self, grid, raises):
        """Also on an engine that raises the errors of clients, as the local one does."""
        make = engine_factory(grid, config(), deadline=None, client_deadline=0.05, simulated=raises)
        engine = make(context_of(config()))
        record = Record({"global": engine.task.network(0).read()})
        assert list(engine.ask(ask_anything("train", {1: record, SLOW_CLIENT: record}), 0)) == [1]
        assert without_text(engine.events) == [("overdue", SLOW_CLIENT)]
        engine.close()

    def test_the_evaluator_has_the_time_of_the_transport(self, grid):
        engine = engine_factory(grid, config(), deadline=30.0, client_deadline=0.01)(context_of(config()))
        record = Record({"global": engine.task.network(0).read()})
        grid.looks = 50  # of 1 ms each
        assert list(engine.ask(ask_anything(EVALUATE, {1: record, SLOW_CLIENT: record}), 0)) == [1, 2]
        engine.close()


class TestDeployed:
    @pytest.fixture
    def grid(self, tmp_path):
        grid = Loopback()
        for client in range(3):
            rng = np.random.default_rng(client)
            path = tmp_path / f"{client}.npz"
            np.savez(path, x=rng.normal(size=(40, 4)).astype(np.float32), y=np.arange(40) % 3)
            memory = str(tmp_path / f"node-{client}")
            grid.join(100 + client, NodeApp(), client=client, data=str(path), memory=memory)
        return grid

    def run(self, grid, folder, clients, deadline):
        """One round; `clients` is the section of that name, `deadline` that of the app."""
        text = 'rounds = 1\n[task]\nmodel = "softmax"\n[method]\nname = "fedavg"\n[train]\nper_round = 3\n'
        (folder / "run.toml").write_text(text + clients)
        values = {"config": str(folder / "run.toml"), "out": str(folder / "out"), "nodes": 3, "wait": 0.0}
        (line,) = run_server(grid, ServerConfig.read(values | {"deadline": deadline})).history
        return line

    @pytest.mark.parametrize(
        ("clients", "seconds"), [("[clients]\ndeadline = 40\n", 40), ("", 50)], ids=["config", "app"]
    )
    def test_messages_live_as_long_as_their_deadline(self, grid, tmp_path, clients, seconds):
        """The config's deadline is for clients; the app's holds for everything else."""
        self.run(grid, tmp_path, clients, deadline=50.0)
        seconds_of = {(message.metadata.message_type, message.metadata.ttl) for message in grid.sent}
        assert seconds_of == {("query.hello", 50), ("train", seconds), ("evaluate", 50)}
