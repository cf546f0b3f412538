"""Flower nodes inside this process: every message is made, answered by its node's app, and read as elsewhere.

There is nothing to start before or to stop after a run, and no port. Nodes work one after the other; a run
that is to use all cores is one for the local engine, which gives the same results.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from ipfl.config.task_section import TaskConfig
from ipfl.config.train_section import AdaptConfig, PrivacyConfig
from ipfl.core import Engine
from ipfl.engines import EngineContext, EngineFactory, refuse_wrapped_clients
from ipfl.engines.flower.flower_engine import FlowerEngine
from ipfl.engines.flower.flwr_internals import EXPIRED_ERROR_CODES, node_info, write_messages_here
from ipfl.engines.flower.node_app import NodeApp, NodeFolders
from ipfl.engines.flower.node_directory import NodeDirectory
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.transport import NodeId, Transport

FIRST_NODE = 100
"""Id of the first node; 1 is the server."""


class LocalGrid(Grid):
    """Flower's interface to nodes, for nodes in this process: a node works when its reply is asked for."""

    def __init__(self) -> None:
        write_messages_here()
        self.nodes: dict[NodeId, tuple[ClientApp, Context]] = {}
        self.keys: dict[NodeId, bytes] = {}
        self._asks: dict[str, Message] = {}
        self._numbers = count()

    def join(self, node: NodeId, app: ClientApp, key: bytes = b"", **node_config: Any) -> None:
        """A node connects, with the config that it was started with."""
        self.nodes[node] = (app, Context(1, node, node_config, RecordDict(), {}))
        self.keys[node] = key

    def get_node_ids(self) -> list[NodeId]:
        """Those of the connected nodes."""
        return list(self.nodes)

    def get_nodes(self) -> list[Any]:
        """The connected nodes with their keys."""
        return [node_info(node, key) for node, key in self.keys.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Takes messages to nodes; returns the ids of those whose node is connected."""
        accepted = []
        for ask in messages:
            ask.metadata.__dict__["_message_id"] = str(next(self._numbers))
            if ask.metadata.dst_node_id in self.nodes:
                self._asks[ask.metadata.message_id] = ask
                accepted.append(ask.metadata.message_id)
        return accepted

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages; an error instead of one that took longer than the message lives."""
        return [self._reply(self._asks.pop(key)) for key in message_ids if key in self._asks]

    def _reply(self, ask: Message) -> Message:
        app, context = self.nodes[ask.metadata.dst_node_id]
        begun = time.monotonic()
        reply = app(ask, context)
        if time.monotonic() - begun <= ask.metadata.ttl:
            return reply
        return Message(Error(EXPIRED_ERROR_CODES[0], ""), reply_to=ask)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies."""
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *given: Any, **named: Any) -> Message:
        """Not used: `Message` itself does that."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        """None: Flower's own facts of a run are not there."""
        return None


def local_grid(app: ClientApp, nodes: int) -> LocalGrid:
    """So many nodes that run an app, each with its number in `partition-id`, as Flower itself has it."""
    grid = LocalGrid()
    for part in range(nodes):
        config: dict[str, Any] = {"partition-id": part, "num-partitions": nodes}
        grid.join(FIRST_NODE + part, app, **config)
    return grid


def simulation_engine(task: TaskConfig) -> EngineFactory:
    """An engine for `ipfl.run`: each client of a config's task on a Flower node in this process.

    Args:
        task: The section `[task]`, from which each node rebuilds its part of the data.
    """

    def make_engine(context: EngineContext) -> Engine:
        refuse_wrapped_clients(context)
        clients = len(context.task.data.clients) + len(context.task.data.unseen)
        with ExitStack() as resources:
            temporary = Path(resources.enter_context(TemporaryDirectory(prefix="ipfl-nodes-")))
            memory = context.memory or temporary / "memory"
            folders = NodeFolders(memory.resolve(), temporary / "received")
            grid = local_grid(NodeApp(folders=folders, send_tracebacks=True), clients)
            settings = RunSettings(
                context.method,
                context.train,
                task,
                context.seed,
                None,
                context.privacy or PrivacyConfig(),
                context.adapt or AdaptConfig(),
            )
            directory = NodeDirectory(Transport(grid, None, 0.0))
            directory.wait_for_clients(clients, 0.0, settings, lambda _: None, fail_on_refusal=True)
            return FlowerEngine(
                directory,
                context.task,
                settings,
                memory,
                simulated=True,
                client_deadline=context.deadline,
                resources=resources.pop_all(),
            )

    return make_engine
