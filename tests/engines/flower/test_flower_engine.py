"""The Flower engine over real nodes on a loopback grid: the local engine's results, and faults."""

import json

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.error import Error
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

import ipfl
from ipfl.config.run_config import EvaluateConfig
from ipfl.config.whole_config import Config
from ipfl.core import Ask, Record, holdout_id
from ipfl.core.replies import Count, ReplySchema
from ipfl.engines.flower.messages import pack_missing, payload_bytes, unpack
from ipfl.errors import InputError
from ipfl.training.task import Task

ROUNDS = 3


def config(name="fedavg", **changes):
    return Config(
        rounds=ROUNDS,
        task=TINY.model_copy(update=changes),
        method={"name": name},
        evaluate=EvaluateConfig(every=1),
    )


def without_bytes(history):
    return [{key: value for key, value in line.items() if "bytes" not in key} for line in history]


@pytest.fixture
def grid(tmp_path):
    grid = Loopback()
    join_nodes(grid, tmp_path / "nodes", 6)
    return grid


@pytest.fixture
def engine(grid):
    """An engine for FedAvg."""
    engine = engine_factory(grid, config())(context_of(config()))
    yield engine
    engine.close()


def model(engine):
    return Record({"global": engine.task.network(0).read()})


def headers(grid):
    return [unpack(message.content)[0] for message in grid.sent]


class TestSameResults:
    def test_the_servers_own_holdouts_never_travel(self, grid):
        settings = config(server_samples=5)
        engine = engine_factory(grid, settings)(context_of(settings))
        before = len(grid.sent)
        replies = engine.ask(ask_anything("train", {holdout_id(0): model(engine)}), 0)
        assert list(replies) == [holdout_id(0)]
        replies = engine.ask(ask_anything("assess", {0: Record(model(engine).params, {"limit": 10})}), 0)
        assert replies[0].facts["n"] == 10
        assert len(grid.sent) == before
        engine.close()


class TestResume:
    def test_after_an_interruption(self, grid, tmp_path):
        """A run that stops in round 2, after some clients have trained, and goes on, gives the same bytes."""
        settings = config("local")
        whole = run(settings, out=tmp_path / "whole")

        class EnoughError(Exception):
            pass

        def stop_in_round_2(ask, reply):
            if ask.metadata.message_type == "train" and unpack(ask.content)[0]["round"] == 2:
                raise EnoughError
            return reply

        grid.fault = stop_in_round_2
        with pytest.raises(EnoughError):
            run(settings, engine_factory(grid, settings), out=tmp_path / "parts")
        grid.fault = lambda ask, reply: reply
        parts = run(settings, engine_factory(grid, settings), ipfl.RunOutput(tmp_path / "parts", resume=True))
        assert without_bytes(parts.history) == without_bytes(whole.history)
        assert headers(grid)[-1]["first_rounds"] == [0, 2]

    def test_an_overwritten_folder_is_another_run(self, grid, tmp_path):
        settings = config("local")
        for _ in range(2):
            run(settings, engine_factory(grid, settings), ipfl.RunOutput(tmp_path / "run", overwrite=True))
        names = {header["run_id"] for header in headers(grid) if "run_id" in header}
        assert len(names) == 2


class TestWhatTravels:
    def test_nothing_that_the_node_holds(self, grid, engine):
        size = 4 * engine.runner.network.size
        settings = len(engine.settings.to_json())
        record, start = model(engine), len(grid.sent)
        for round in range(3):
            engine.ask(ask_anything("train", {0: record}), round)
        first, *later = [payload_bytes(message.content) for message in grid.sent[start:]]
        assert size + settings < first < size + settings + 600  # the header is a few hundred bytes
        assert max(later) < 600
        assert len(later) == 2

    def test_a_node_that_lost_everything_is_sent_everything(self, grid, engine, tmp_path):
        record = model(engine)
        expected = engine.ask(ask_anything("train", {0: record}), 0)
        for path in (tmp_path / "nodes" / "received" / "0").iterdir():
            path.unlink()
        start = len(grid.sent)
        again = engine.ask(ask_anything("train", {0: record}), 0)
        assert again[0].params["global"].tobytes() == expected[0].params["global"].tobytes()
        assert len(grid.sent) == start + 2
        assert engine.events == []

    def test_the_line_of_a_round_says_what_travelled(self, grid):
        settings = config()
        settings = settings.model_copy(update={"evaluate": EvaluateConfig(every=ROUNDS)})
        result = run(settings, engine_factory(grid, settings))
        local = run(settings)
        sent = sum(payload_bytes(message.content) for message in grid.sent)
        assert result.summary["bytes_down"] == sent
        assert result.summary["bytes_up"] == pytest.approx(local.summary["bytes_up"], rel=0.2)


def reply_with(ask, arrays=(), **changes):
    """A reply of client 0 with other fields in its header."""
    header = {"client": 0, "params": {}, "facts": {}} | changes
    content = RecordDict(
        {"head": ConfigRecord({"json": json.dumps(header)}), "arrays": ArrayRecord(dict(arrays))}
    )
    return Message(content, reply_to=ask)


FAULTS = {
    "late": (lambda ask: None, "overdue"),
    "an error of Flower's": (lambda ask: Message(Error(0, "it \n fell"), reply_to=ask), "client_failed"),
    "late, says Flower": (lambda ask: Message(Error(4, ""), reply_to=ask), "overdue"),
    "another client": (lambda ask: reply_with(ask, client=1), "malformed_reply"),
    "no client": (lambda ask: reply_with(ask, client=None), "malformed_reply"),
    "its code raised": (lambda ask: reply_with(ask, error="KeyError: 'x'"), "client_failed"),
    "it refuses": (lambda ask: reply_with(ask, error="no such data", is_input=True), "client_failed"),
    "a vector is missing": (lambda ask: reply_with(ask, params={"w": "0"}), "malformed_reply"),
    "no header": (lambda ask: Message(RecordDict(), reply_to=ask), "malformed_reply"),
    "it keeps no arrays": (lambda ask: Message(pack_missing([]), reply_to=ask), "client_failed"),
    "characters that steer a terminal": (
        lambda ask: reply_with(ask, error="\x1b[2J\x07"),
        "client_failed",
    ),
}
"""Instead of a reply, what arrives (None: nothing), and the kind of event that it becomes."""


def replace_replies(grid, node, fault):
    """Every reply of one node, but its first, is replaced."""
    grid.fault = lambda ask, reply: (
        fault(ask)
        if ask.metadata.dst_node_id == node and ask.metadata.message_type != "query.hello"
        else reply
    )


class TestFaults:
    @pytest.mark.parametrize("name", FAULTS)
    def test_of_one_client(self, grid, engine, name):
        """It is absent and an event says why, on one line; the others' answers count."""
        fault, kind = FAULTS[name]
        replace_replies(grid, 100, fault)
        replies = engine.ask(ask_anything("train", {0: model(engine), 1: model(engine)}), 0)
        assert list(replies) == [1]
        assert without_text(engine.events) == [(kind, 0)]
        assert engine.events[0].text.isprintable()

    def test_a_reply_is_no_larger_than_a_valid_one(self, grid, engine):
        """6 MB for a model of 650 parameters: refused by its size, before anything of it is read."""
        array = Array(dtype="float32", shape=(1_500_000,), stype="ipfl.raw", data=bytes(6_000_000))
        replace_replies(grid, 100, lambda ask: reply_with(ask, {"0": array}, params={"w": "0"}))
        sent = model(engine)
        schema = ReplySchema({"n": Count}, {"global": 650})
        assert list(engine.ask(Ask("train", {0: sent, 1: sent}, schema), 0)) == [1]
        assert "its arrays have 6000000 bytes, 2600 at most are expected" in engine.events[0].text

    def test_what_flower_cannot_parse_is_about_one_client(self, grid, engine):
        """Flower parses a reply while it is pulled: the others' replies must not be lost with it."""
        pull = grid.pull_messages

        def fail_for_one(keys):
            for ask in grid.sent:
                if ask.metadata.message_id in keys and ask.metadata.dst_node_id == 100:
                    raise ValueError("the bytes of an object do not match its id")
            return pull(keys)

        grid.pull_messages = fail_for_one
        replies = engine.ask(ask_anything("train", {0: model(engine), 1: model(engine)}), 0)
        assert list(replies) == [1]
        assert without_text(engine.events) == [("client_failed", 0)]

    def test_a_client_that_raises(self, grid, engine):
        """The ask has no vector that the method wants. In a simulation that ends the run."""
        assert engine.ask(ask_anything("train", {0: Record()}), 0) == {}
        assert without_text(engine.events) == [("client_failed", 0)]

    def test_a_server_with_another_model(self, grid):
        settings = config()
        other = Task.build(settings.task.model_copy(update={"model": "mlp"}), 0)
        engine = engine_factory(grid, settings)(context_of(settings, other))
        assert engine.ask(ask_anything("train", {0: model(engine)}), 0) == {}
        assert without_text(engine.events) == [("client_failed", 0)]
        engine.simulated = True
        with pytest.raises(InputError, match="the model here has 650 parameters"):  # 8·8·10 weights + 10
            engine.ask(ask_anything("train", {0: model(engine)}), 0)
        engine.close()

    def test_messages_of_an_attempt_given_up_are_refused(self, grid, engine):
        engine.ask(ask_anything("train", {0: model(engine)}), 0)
        engine.roll_back(-1)
        engine.ask(ask_anything("train", {0: model(engine)}), 0)
        engine.attempts.first_rounds.pop()
        assert engine.ask(ask_anything("train", {0: model(engine)}), 0) == {}
        assert without_text(engine.events) == [("client_failed", 0)]
        assert "attempt 0 was given up" in engine.events[0].text


class TestNodes:
    def test_late_and_gone(self, grid, engine, tmp_path):
        everyone = tuple(range(6))
        assert engine.present(everyone) == everyone
        app, context = grid.nodes[103]
        grid.leave(103)
        assert engine.present(everyone) == (0, 1, 2, 4, 5)
        assert engine.ask(ask_anything("train", {3: model(engine)}), 0) == {}
        assert without_text(engine.events) == [("not_connected", 3)]
        grid.join(203, app, **context.node_config)
        assert engine.present(everyone) == everyone
        assert list(engine.ask(ask_anything("train", {3: model(engine)}), 0)) == [3]

    def test_a_node_that_dies_in_a_round(self, grid, engine):
        grid.leave(100)
        replies = engine.ask(ask_anything("train", {0: model(engine), 1: model(engine)}), 0)
        assert list(replies) == [1]
        assert without_text(engine.events) == [("client_failed", 0)]

    def test_nobody_is_left(self, grid, engine):
        for node in list(grid.nodes):
            grid.leave(node)
        with pytest.raises(InputError, match="0 of 1 clients came within 0 s"):
            engine.present(tuple(range(6)))

    def test_two_nodes_with_the_same_part(self, grid):
        app, _ = grid.nodes[100]
        grid.join(999, app, **{"partition-id": 0, "num-partitions": 6})
        with pytest.raises(InputError, match="node 999 claims client 0, which is on node 100"):
            run(config(), engine_factory(grid, config()))

    def test_a_second_node_with_the_same_part_later(self, grid, engine):
        app, _ = grid.nodes[100]
        grid.join(999, app, **{"partition-id": 0, "num-partitions": 6})
        assert engine.present(tuple(range(6))) == tuple(range(6))
        assert without_text(engine.events) == [("node_refused", None)]
        engine.present(tuple(range(6)))
        assert len(engine.events) == 1  # said once
