"""The ServerApp: waits for its nodes, then runs the ordinary round loop over them.

It prints a line for each round and each event, and `error: …` before it fails on bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import Field

import ipfl.engines.flower  # noqa: F401  (no telemetry)
from ipfl.client.network import Factory, model_factory
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import ClientId, Method
from ipfl.core.sections import Section
from ipfl.deploy.run_log import print_input_error, print_progress
from ipfl.engines.flower.attempts import Attempts
from ipfl.engines.flower.directory import Accounts, Directory
from ipfl.engines.flower.engine import FlowerEngine
from ipfl.engines.flower.nodes import Nodes
from ipfl.engines.flower.plan import Plan
from ipfl.engines.flower.post import Post
from ipfl.engines.flower.remote import RemoteData, View
from ipfl.errors import InputError
from ipfl.report.progress import accuracy
from ipfl.runs.comparison import run_config
from ipfl.runs.config import Config
from ipfl.runs.folder import ATTEMPTS
from ipfl.runs.loop import Result

POLL = 0.25
"""Seconds between looks at the mail."""


class Order(Section):
    """The app's run config (`[tool.flwr.app.config]`, `flwr run --run-config`)."""

    config: Path | None = Field(None, description="the run's TOML file, on the server")
    out: Path = Field(description="folder for the results, on the server")
    resume: bool = Field(False, description="go on with the run in `out`")
    rounds: int = Field(0, ge=0, description="0: as the TOML file says")
    registry: Path | None = Field(
        None, description="the book of accounts; without it, nodes say who they are"
    )
    nodes: int = Field(2, ge=1, description="wait for so many clients")
    wait: float = Field(60.0, ge=0, description="seconds to wait for them")
    deadline: float = Field(300.0, gt=0, description="seconds that a client has for one phase")
    classes: int = Field(0, ge=0, description="number of classes; 0: what the nodes' labels say")
    fp16: bool = Field(False, description="models travel as float16: half the bytes, other results")

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Order:
        """Reads the run config; an empty text stands for nothing."""
        return cls.of({key: value for key, value in said.items() if value != ""})

    def settings(self) -> Config:
        """The run's own config."""
        return Config.load(self.config, overrides={"rounds": self.rounds} if self.rounds else {})


class Lines:
    """Says how the run goes on, a line for each round and each event."""

    def start(self, method: str, rounds: int) -> None:
        """The first round is about to begin."""
        self.rounds = rounds
        say(f"{method}: {rounds} rounds")

    def round(self, line: Mapping[str, Any]) -> None:
        """A round is over."""
        for event in line["events"]:
            say(f"  {event}")
        known = accuracy(line)
        say(
            f"round {line['round'] + 1}/{self.rounds}: {line['clients']} clients, "
            f"{line['bytes_down']:,} bytes down, {line['bytes_up']:,} up"
            + (f", accuracy {known}" if known else "")
        )

    def finish(self) -> None:
        """Nothing left to say."""


def say(line: str) -> None:
    """Prints a line at once: whoever follows the run's log waits for it."""
    print_progress(line)


def accounts_of(registry: Path | None) -> Accounts | None:
    """Who owns which key, if there is a book of accounts."""
    if registry is None:
        return None
    from ipfl.deploy.registry import client_lookup

    return client_lookup(registry)


def meet(order: Order, plan: Plan, nodes: Nodes, factory: Factory) -> Task:
    """Waits for the nodes and puts together what the server may know of their data."""
    begun = Attempts.read(order.out / ATTEMPTS).view if order.resume else None
    nodes.directory.shape = begun.input_shape if begun else None
    nodes.gather(order.nodes, order.wait, plan, say, picky=order.registry is None)
    here = nodes.directory.nodes.values()
    if begun is None:
        shape = next(iter(here)).input_shape
        classes = order.classes or max(greeting.classes for greeting in here)
        begun = View(_everyone(order.registry) or nodes.directory.clients, shape, classes)
    sizes = {client: said for greeting in here for client, said in greeting.sizes.items()}
    task = Task(RemoteData(begun, sizes), factory)
    nodes.directory.members = frozenset(begun.clients)
    nodes.directory.size = task.network(plan.seed).size
    _refuse_misfits(order, nodes, task)
    return task


def _refuse_misfits(order: Order, nodes: Nodes, task: Task) -> None:
    """Turns those away that were greeted before it was clear what the run's classes and model are."""
    directory, classes = nodes.directory, task.data.classes
    for node, greeting in list(directory.nodes.items()):
        if greeting.classes > classes:
            why = f"node {node} has {greeting.classes} classes, the run has {classes}; refused"
        elif greeting.classes == classes and greeting.size != directory.size:
            why = f"node {node} has a model of {greeting.size} parameters, not {directory.size}; refused"
        else:
            continue
        if order.registry is None:
            raise InputError(why)
        directory.turn_away(node)
        nodes.events.append(why)


def _everyone(registry: Path | None) -> tuple[ClientId, ...]:
    """All accounts, whether their nodes are here or not: each is opened once, at the start."""
    if registry is None:
        return ()
    from ipfl.deploy.registry import Registry

    return Registry.load(registry).clients()


def serve(grid: Grid, order: Order, model: Factory | None = None) -> Result:
    """Runs the method of the order's config over the nodes of a grid."""
    config = order.settings()
    method, factory = config.build_method(), model or model_factory(config.task.model)
    plan = Plan(method, config.train, config.task, config.seed, classes=order.classes or None)
    nodes = Nodes(Post(grid, order.deadline, POLL, lambda: None), Directory(accounts_of(order.registry)))
    task = meet(order, plan, nodes, factory)
    plan = replace(plan, classes=task.data.classes)

    def hire(
        task: Task, method: Method[Any], train: TrainConfig, seed: int, memory: Path | None
    ) -> FlowerEngine:
        return FlowerEngine(nodes, task, plan, memory, half=order.fp16, wait=order.wait, say=say)

    return run_config(
        config,
        method,
        task,
        config.seed,
        out=order.out,
        resume=order.resume,
        observer=Lines(),
        engine=hire,
    )


def server_app(model: Factory | None = None) -> ServerApp:
    """A ServerApp for the config's model, or for one of your own: (input_shape, classes) → `nn.Module`."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            result = serve(grid, Order.read(context.run_config), model)
        except InputError as error:
            print_input_error(str(error))
            raise
        say(f"done: {result.summary['rounds']} rounds")

    return app


app = server_app()
