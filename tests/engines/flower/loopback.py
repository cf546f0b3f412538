"""A Flower grid without Flower's processes: every message is answered by the real app of its node at once.

What goes wrong on the way (a late reply, an error, a malformed reply) is decided by `fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from flwr.app import Message
from tests.small_runs import SMALL

import ipfl
from ipfl.config.task_section import TaskConfig
from ipfl.config.whole_config import Config
from ipfl.core import Event
from ipfl.engines import EngineContext, EngineFactory
from ipfl.engines.flower.flower_engine import FlowerEngine
from ipfl.engines.flower.node_app import NodeApp, NodeFolders
from ipfl.engines.flower.node_directory import NodeDirectory
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.simulation import LocalGrid
from ipfl.engines.flower.transport import Transport
from ipfl.training.task import Task

Fault = Callable[[Message, Message], Message | None]
"""From an ask and its reply to what arrives; None: nothing does."""


class Loopback(LocalGrid):
    def __init__(self):
        super().__init__()
        self.sent: list[Message] = []
        self.fault: Fault = lambda ask, reply: reply
        self.unread: dict[str, Message] = {}

    def join(self, node: int, app: NodeApp, key: bytes = b"", **node_config):
        """A node is started: with nothing in memory, though all live in this process."""
        app.runners.clear()
        super().join(node, app, key, **node_config)

    def leave(self, node: int):
        del self.nodes[node], self.keys[node]

    def push_messages(self, messages):
        """Every node answers at once."""
        accepted = super().push_messages(messages)
        for key in accepted:
            ask = self._asks[key]
            self.sent.append(ask)
            (reply,) = super().pull_messages([key])
            reply = self.fault(ask, reply)
            if reply is not None:
                self.unread[key] = reply
        return accepted

    def pull_messages(self, message_ids):
        return [self.unread.pop(key) for key in message_ids if key in self.unread]


def join_nodes(grid: Loopback, folder: Path, nodes: int) -> None:
    """The nodes of the first clients of the config's task join."""
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
        directory = NodeDirectory(Transport(grid, deadline, 0.001))
        directory.wait_for_clients(1, 1.0, settings, lambda line: None, fail_on_refusal=True)
        return FlowerEngine(directory, context.task, settings, context.memory, **options)

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


TINY = TaskConfig(**SMALL)
