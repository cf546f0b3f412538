"""A Flower grid without Flower's processes: every message is answered by the real app of its node at once.

What goes wrong on the way (a late reply, an error, a malformed reply) is decided by `fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import ipfl
from ipfl.config.run_config import Config
from ipfl.config.task_section import TaskConfig
from ipfl.core import Event
from ipfl.engines import EngineContext, EngineFactory
from ipfl.engines.flower.flower_engine import FlowerEngine
from ipfl.engines.flower.membership import Membership, NodeDirectory
from ipfl.engines.flower.node_app import NodeApp, NodeFolders, runners
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.transport import Transport
from ipfl.training.task import Task

Fault = Callable[[Message, Message], Message | None]
"""From an ask and its reply to what arrives; None: nothing does."""


class Loopback(Grid):
    def __init__(self):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # who writes messages here
        self.nodes: dict[int, tuple[NodeApp, Context]] = {}
        self.keys: dict[int, bytes] = {}
        self.sent: list[Message] = []
        self.fault: Fault = lambda ask, reply: reply
        self.unread: dict[str, Message] = {}
        self._numbers = count()

    def join(self, node: int, app: NodeApp, key: bytes = b"", **node_config):
        """A node is started: with nothing in memory, though all live in this process."""
        runners.clear()
        self.nodes[node] = (app, Context(1, node, dict(node_config), RecordDict(), {}))
        self.keys[node] = key

    def leave(self, node: int):
        del self.nodes[node]

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [NodeInfo(node_id=node, public_key=self.keys[node]) for node in self.nodes]

    def push_messages(self, messages):
        accepted = []
        for ask in messages:
            ask.metadata.__dict__["_message_id"] = str(next(self._numbers))
            if ask.metadata.dst_node_id not in self.nodes:
                continue
            accepted.append(ask.metadata.message_id)
            self.sent.append(ask)
            app, context = self.nodes[ask.metadata.dst_node_id]
            reply = self.fault(ask, app(ask, context))
            if reply is not None:
                self.unread[ask.metadata.message_id] = reply
        return accepted

    def pull_messages(self, message_ids):
        return [self.unread.pop(key) for key in message_ids if key in self.unread]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError


def join_nodes(grid: Loopback, folder: Path, nodes: int) -> None:
    """So many nodes join, and share the clients of the config's task among them."""
    app = NodeApp(folders=NodeFolders(folder / "memory", folder / "received"))
    for part in range(nodes):
        grid.join(100 + part, app, **{"partition-id": part, "num-partitions": nodes})


def engine_factory(
    grid: Loopback, config: Config, *, deadline: float | None = 0.05, **options
) -> Callable[[EngineContext], FlowerEngine]:
    """An engine over the grid, for `ipfl.run`."""

    def make_engine(context: EngineContext) -> FlowerEngine:
        settings = RunSettings(
            context.method,
            context.train,
            config.task,
            context.seed,
            classes=None,
            privacy=config.privacy,
            adapt=config.adapt,
        )
        membership = Membership(Transport(grid, deadline, 0.001, lambda: None), NodeDirectory())
        membership.wait_for_clients(1, 1.0, settings, lambda line: None, fail_on_refusal=True)
        return FlowerEngine(membership, context.task, settings, context.memory, **options)

    return make_engine


def context_of(config: Config, task: Task | None = None) -> EngineContext:
    """What `ipfl.run` makes an engine from, for a run without a folder."""
    task = task or Task.build(config.task, config.seed)
    return EngineContext(
        task, config.build_method(), config.train, config.seed, None, config.clients.deadline
    )


def run(config: Config, engine: EngineFactory | None = None, out: ipfl.RunOutput | Path | None = None):
    """The config's run; on the local engine, in this process, if no other is given."""
    task = Task.build(config.task, config.seed)
    return ipfl.run(task, config.build_method(), config, engine=engine or ipfl.local_engine(0), out=out)


def without_text(events: Iterable[Event]) -> list[tuple[str, int | None]]:
    """Kind and client of each event: all that tests look at."""
    return [(event.kind, event.client) for event in events]


TINY = TaskConfig(clients=6, samples=20, test_samples=20, model="softmax")
