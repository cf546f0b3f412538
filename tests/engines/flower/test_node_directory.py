"""Which nodes take part: registered keys decide, and what does not fit the run is refused."""

import json
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from tests.engines.flower.loopback import TINY, Loopback, join_nodes, without_text

import ipfl
from ipfl.config.train_section import TrainConfig
from ipfl.engines.flower import node_directory
from ipfl.engines.flower.message_headers import NodeInfo
from ipfl.engines.flower.node_directory import NodeDirectory, NodeRefusedError, agree_on_task
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.transport import Transport
from ipfl.errors import InputError

CLASSES = 3
TRANSPORT = Transport(Loopback(), 0.05, 0.001)


def info(client, shape=(4,), size=15):
    return NodeInfo(client, size, CLASSES, shape, {})


class TestDirectory:
    def test_a_registered_key_decides(self):
        directory = NodeDirectory(TRANSPORT, {b"a": 0, b"b": 1}.get)
        directory.add(10, info(0), b"a")
        with pytest.raises(
            NodeRefusedError, match="node 11 claims client 0, but its key belongs to client 1"
        ):
            directory.add(11, info(0), b"b")
        with pytest.raises(NodeRefusedError, match="node 12 has a key that is not registered"):
            directory.add(12, info(2), b"c")
        assert directory.clients == (0,)
        assert directory.unknown([9, 10, 11, 12]) == [9]

    def test_late_comers_must_fit(self):
        directory = NodeDirectory(
            TRANSPORT, model_size=15, allowed_clients=frozenset({0, 1}), input_shape=info(0).input_shape
        )
        directory.add(10, info(0), b"")
        for node, said, why in (
            (11, info(1, size=16), "16 parameters, not 15"),
            (12, info(1, shape=(5,)), "shape"),
            (13, info(2), "client 2, which is not in this run"),
        ):
            with pytest.raises(NodeRefusedError, match=why):
                directory.add(node, said, b"")

    def test_a_client_may_come_back_on_another_node(self):
        directory = NodeDirectory(TRANSPORT)
        directory.add(10, info(0), b"")
        told = directory.refuse_misfits((5,), CLASSES, 15)
        assert told == ["node 10 has samples of shape (4,), not (5,); refused"]
        assert (directory.clients, directory.unknown([10])) == ((), [])
        directory.remove([10])
        directory.add(20, info(0, shape=(5,)), b"")
        assert directory.node_of(0) == 20


HONEST = {"client": 0, "model_size": 15, "classes": 3, "input_shape": [4], "samples": {"train": 3}}
"""What a node of client 0 says of itself."""
WRONG = (-1, 2**62, "3", [0], [2**62], [1] * 65, {"train": "three"}, {"train": 2**40})
MALFORMED_HEADERS = [
    *("[]", "{}", '{"client": 0}', '{"error": 3}', '{"error": {"a": 1}}'),
    *("[" * 900, "[" * 60_000, '{"a":' * 10_000, '{"classes": 1' + "0" * 5000 + "}"),
    *(json.dumps(HONEST | {field: value}) for field in HONEST for value in WRONG),
    json.dumps(HONEST | {"classes": 3_000_000}),
]
"""First replies that no honest node sends; none of them may end a run."""


class TestAgreement:
    """Shape and classes of a task: three nodes of which one lies."""

    @pytest.mark.parametrize("liar", [{"classes": 60_000}, {"input_shape": (9, 9)}])
    def test_one_node_chooses_nothing(self, liar):
        """Nor by being the first."""
        shape, classes, events = agree_on_task([replace(info(0), **liar), info(1), info(2)])
        assert (shape, classes) == (info(1).input_shape, CLASSES)
        assert without_text(events) == [("task_decided", None)]

    @pytest.mark.parametrize(("said", "decided"), [(CLASSES, None), (7, 7)])
    def test_no_event_where_all_agree_or_the_operator_decides(self, said, decided):
        found = agree_on_task([info(0), replace(info(1), classes=said)], decided)
        assert found == (info(0).input_shape, said, [])

    def test_half_is_no_majority(self):
        with pytest.raises(InputError, match=r"do not agree on the number of classes: .* --classes N"):
            agree_on_task([info(0), replace(info(1), classes=7)])


class TestMembership:
    @pytest.mark.parametrize("text", MALFORMED_HEADERS, ids=count())
    def test_a_malformed_first_reply_refuses_the_node_and_not_the_run(self, tmp_path, text):
        grid = Loopback()
        join_nodes(grid, tmp_path, 3)
        malformed = RecordDict({"head": ConfigRecord({"json": text}), "arrays": ArrayRecord({})})
        grid.fault = lambda ask, reply: (
            Message(malformed, reply_to=ask) if ask.metadata.dst_node_id == 100 else reply
        )
        settings = RunSettings(ipfl.method("fedavg"), TrainConfig(), TINY, 0, classes=None)
        directory = NodeDirectory(Transport(grid, 0.05, 0.001))
        directory.wait_for_clients(1, 0.0, settings, print)
        assert directory.clients == (1, 2)
        assert without_text(directory.events) == [("node_refused", None)]

    def test_waiting_is_told_once_and_then_every_half_minute(self, monkeypatch):
        """100 s without a node, a look every second: the clock goes on only while we sleep."""
        now, lines = [0.0], list[str]()

        def sleep(seconds):
            now[0] += seconds

        clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
        monkeypatch.setattr(node_directory, "time", clock)
        settings = RunSettings(ipfl.method("fedavg"), TrainConfig(), TINY, 0, classes=None)
        directory = NodeDirectory(Transport(Loopback(), 0.05, 1.0))
        with pytest.raises(InputError, match="0 of 3 clients came within 100 s"):
            directory.wait_for_clients(3, 100.0, settings, lines.append)
        assert [line.split(";")[0] for line in lines] == [
            f"waiting for nodes: 0 of 3 clients are here after {seconds} of 100 s"
            for seconds in (0, 30, 60, 90)
        ]
        assert all("ipfl deploy node DIR" in line for line in lines)
