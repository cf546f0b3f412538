"""`clients.deadline` of the config holds on Flower as on the local engine: who takes longer is left out."""

import time

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
