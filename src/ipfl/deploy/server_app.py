"""The ServerApp of a deployed federation: waits for its nodes, then runs the ordinary round loop over them.

It prints a line for each round and each event, and `error: …` before it fails on bad input. `app` is what
`[tool.flwr.app.components]` names; a Flower app with a model of its own uses `server_app(model)`, and
`simulate` to try it out on simulated nodes. See docs/flower.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import ipfl.engines.flower  # noqa: F401 (switches telemetry off)
from ipfl.core import Event
from ipfl.core.rounds import summarize
from ipfl.deploy.registry import Registry, client_lookup
from ipfl.deploy.run_log import LineKind, print_line
from ipfl.deploy.settings_files import ServerConfig, load_run_config
from ipfl.engines import ATTEMPTS_FILE, EngineContext
from ipfl.engines.flower.flower_engine import FlowerEngine, RemoteData
from ipfl.engines.flower.node_app import NodeApp, NodeFolders
from ipfl.engines.flower.node_directory import NodeDirectory, agree_on_task
from ipfl.engines.flower.node_memory import Attempts, DataDescription
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.simulation import local_grid
from ipfl.engines.flower.transport import Transport
from ipfl.errors import InputError
from ipfl.keep.run_folder import RunOutput
from ipfl.play.run import run
from ipfl.report.progress import accuracy_text
from ipfl.results.result import NO_ROUND_COUNTED, Result
from ipfl.training.architectures import Factory, model_factory
from ipfl.training.task import Task

REPLY_POLL_SECONDS = 0.5
"""Seconds between the first looks for replies: a SuperNode looks as often for messages and replies."""
SIMULATED_NODES = "nodes"
"""Folder, inside that of a simulated run, for what its nodes remember."""


class LinePrinter:
    """Prints a line for each round and each event."""

    def start(self, method: str, rounds: int) -> None:
        """The first round is about to begin."""
        self.rounds = rounds
        print_line(f"{method}: {rounds} rounds")

    def round(self, line: Mapping[str, Any]) -> None:
        """A round is over."""
        for event in summarize(line["events"]):
            print_line(f"  {event}")
        known = accuracy_text(line)
        print_line(
            f"{line['round'] + 1} of {self.rounds} rounds: {line['clients']} clients, "
            f"{line['bytes_down']:,} bytes down, {line['bytes_up']:,} up"
            + (f", accuracy {known}" if known else "")
        )

    def finish(self) -> None:
        """Prints nothing."""


def build_task(
    server_config: ServerConfig, settings: RunSettings, directory: NodeDirectory, factory: Factory
) -> Task:
    """Waits for the nodes and builds a task from what they say of their data.

    A resumed run has the clients, input shape and classes that it was begun with. In a new one, every account
    is a client, whether its node is connected or not: each account is opened once, at the start.
    """
    begun = Attempts.read(server_config.out / ATTEMPTS_FILE).data if server_config.resume else None
    directory.input_shape = begun.input_shape if begun else None
    directory.wait_for_clients(
        server_config.nodes,
        server_config.wait,
        settings,
        print_line,
        fail_on_refusal=server_config.registry is None,
    )
    present = list(directory.nodes.values())
    description = begun or _describe_data(server_config, directory)
    samples = {info.client: info.samples for info in present}
    task = Task(RemoteData(description, samples), factory)
    directory.allowed_clients = frozenset(description.clients)
    model_size = task.network(settings.seed).size
    for reason in directory.refuse_misfits(description.input_shape, description.classes, model_size):
        if server_config.registry is None:
            raise InputError(reason)
        directory.events.append(Event("node_refused", None, reason))
    return task


def _describe_data(server_config: ServerConfig, directory: NodeDirectory) -> DataDescription:
    """What the data of a new run looks like: as the operator says, or as more than half of the nodes do."""
    shape, classes, events = agree_on_task(directory.nodes.values(), server_config.classes or None)
    directory.events.extend(events)
    accounts = server_config.registry
    clients = directory.clients if accounts is None else Registry.load(accounts).clients()
    return DataDescription(clients, shape, classes)


def run_server(grid: Grid, server_config: ServerConfig, model: Factory | None = None) -> Result:
    """Runs the method of the config over the nodes of a grid."""
    overrides = {"rounds": server_config.rounds} if server_config.rounds else {}
    config = load_run_config(server_config.config, overrides=overrides)
    if config.task.predict != "classes":
        raise InputError(
            f"task.predict = {config.task.predict!r}: nodes with data of their own can predict classes only"
        )
    method, factory = config.build_method(), model or model_factory(config.task.model)
    settings = RunSettings(
        method,
        config.train,
        config.task,
        config.seed,
        server_config.classes or None,
        config.privacy,
        config.adapt,
    )
    transport = Transport(grid, server_config.deadline, REPLY_POLL_SECONDS)
    accounts = server_config.registry
    client_of_key = None if accounts is None else client_lookup(accounts)
    directory = NodeDirectory(transport, client_of_key)
    task = build_task(server_config, settings, directory, factory)
    settings = replace(settings, classes=task.data.classes)

    def make_engine(context: EngineContext) -> FlowerEngine:
        return FlowerEngine(
            directory,
            context.task,
            settings,
            context.memory,
            client_deadline=context.deadline,
            wait_seconds=server_config.wait,
            print_line=print_line,
        )

    output = RunOutput(server_config.out, resume=server_config.resume, accounts=server_config.accounts)
    return run(task, method, config, engine=make_engine, out=output, observer=LinePrinter())


def server_app(model: Factory | None = None) -> ServerApp:
    """A ServerApp for the config's model, or for one of your own: (input_shape, classes) → `nn.Module`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            result = run_server(grid, ServerConfig.read(context.run_config), model)
        except InputError as error:
            print_line(str(error), LineKind.INPUT_ERROR)
            raise
        if not result.summary["counted"]:
            print_line(NO_ROUND_COUNTED, LineKind.FAILURE)
            return
        print_line(f"done: {result.summary['rounds']} rounds")

    return app


def simulate(
    app: NodeApp,
    nodes: int,
    *,
    model: Factory | None = None,
    **run_config: Any,
) -> Result:
    """Tries an app out: simulated nodes that run it, and the server that `server_app` would be.

    Args:
        app: What nodes run, with your own loader and model.
        nodes: Number of nodes; each is one client.
        model: The same model for the server; None: the config's.
        **run_config: The app's run config, such as `config`, `out` and `rounds`; see `ServerConfig`.
    """
    server_config = ServerConfig.read({"nodes": nodes, "wait": 0.0, **run_config})
    with ExitStack() as stack:
        if app.folders is None:  # all simulated nodes are on this machine: give them folders of their own
            temporary = Path(stack.enter_context(TemporaryDirectory(prefix="ipfl-nodes-")))
            app.folders = NodeFolders(server_config.out.resolve() / SIMULATED_NODES, temporary)
        return run_server(local_grid(app, nodes), server_config, model)


app = server_app()
