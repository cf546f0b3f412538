"""Which nodes take part: registered keys decide, and what does not fit the run is refused."""

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from tests.engines.flower.loopback import TINY, Loopback, join_nodes, without_text

import ipfl
from ipfl.client.settings import TrainConfig
from ipfl.engines.flower.membership import Membership, NodeDirectory, NodeRefusedError
from ipfl.engines.flower.protocol import NodeInfo, RunSettings
from ipfl.engines.flower.transport import Transport

CLASSES = 3


def info(*clients, shape=(4,), size=15):
    return NodeInfo(clients, size, CLASSES, shape, {})


class TestDirectory:
    def test_a_registered_key_decides(self):
        directory = NodeDirectory({b"a": 0, b"b": 1}.get)
        directory.add(10, info(0), b"a")
        with pytest.raises(
            NodeRefusedError, match="node 11 claims client 0, but its key belongs to client 1"
        ):
            directory.add(11, info(0), b"b")
        with pytest.raises(NodeRefusedError, match="node 12 has a key that is not registered"):
            directory.add(12, info(2), b"c")
        with pytest.raises(NodeRefusedError, match="claims client 1 and 2, but its key belongs to client 1"):
            directory.add(13, info(1, 2), b"b")
        assert directory.clients == (0,)
        assert directory.unknown([9, 10, 11, 12, 13]) == [9]

    def test_late_comers_must_fit(self):
        directory = NodeDirectory(model_size=15, allowed_clients=frozenset({0, 1}))
        directory.add(10, info(0), b"")
        for node, said, why in (
            (11, info(1, size=16), "16 parameters, not 15"),
            (12, info(1, shape=(5,)), "shape"),
            (13, info(2), "client 2, which is not in this run"),
        ):
            with pytest.raises(NodeRefusedError, match=why):
                directory.add(node, said, b"")

    def test_a_client_may_come_back_on_another_node(self):
        directory = NodeDirectory()
        directory.add(10, info(0), b"")
        directory.refuse(10)
        assert (directory.clients, directory.unknown([10])) == ((), [])
        directory.remove([10])
        directory.add(20, info(0), b"")
        assert directory.node_of(0) == 20


class TestMembership:
    @pytest.mark.parametrize("text", ["[]", "{}", '{"error": 3}', '{"clients": [0], "sizes": {"x": 1}}'])
    def test_a_malformed_first_reply_refuses_the_node_and_not_the_run(self, tmp_path, text):
        grid = Loopback()
        join_nodes(grid, tmp_path, 2)
        malformed = RecordDict({"head": ConfigRecord({"json": text}), "arrays": ArrayRecord({})})
        grid.fault = lambda ask, reply: (
            Message(malformed, reply_to=ask) if ask.metadata.dst_node_id == 100 else reply
        )
        settings = RunSettings(ipfl.method("fedavg"), TrainConfig(), TINY, 0, classes=None)
        membership = Membership(Transport(grid, 0.05, 0.001, lambda: None), NodeDirectory())
        membership.wait_for_clients(1, 0.0, settings, print)
        assert membership.directory.clients == (1, 3, 5)
        assert without_text(membership.events) == [("node_refused", None)]
