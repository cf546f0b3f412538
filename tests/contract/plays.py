"""Plays of a method's rounds for the contract suite: recorded, with lost replies, and compared by hash."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.federation import RecordingEngine, engine_for, play_round

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import EVALUATE
from ipfl.config.run_config import RunConfig
from ipfl.config.sections import Section
from ipfl.core import (
    Ask,
    HasClusters,
    HasReport,
    Method,
    Record,
    Replies,
    Round,
    Setup,
    TaskFacts,
    holdout_id,
)
from ipfl.errors import NotSupportedError
from ipfl.methods.shared.client_model_store import ClientModelStore
from ipfl.training.task import Task

ROUNDS = 3
STRANGER = 10**6
TINY = {"clients": 6, "samples": 20, "test_samples": 20, "model": "softmax"}

Drop = Callable[[Ask, int, int], bool]
"""Whether a client's reply to an ask in a round gets lost."""


def digest(thing: Any) -> str:
    """A hash of everything inside: dataclasses, mappings, sequences, arrays, scalars."""
    found = hashlib.sha256()

    def visit(part: Any) -> None:
        found.update(type(part).__name__.encode())
        if isinstance(part, ClientModelStore):
            for client in part.clients:
                visit((client, part[client]))
        elif dataclasses.is_dataclass(part):
            for field in dataclasses.fields(part):
                found.update(field.name.encode())
                visit(getattr(part, field.name))
        elif isinstance(part, Section):
            visit(part.model_dump())
        elif callable(part):
            pass  # the setup's way to other starts
        elif isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        elif isinstance(part, Mapping):
            for key, value in part.items():
                visit(key)
                visit(value)
        elif isinstance(part, Sequence) and not isinstance(part, str | bytes):
            for value in part:
                visit(value)
        elif isinstance(part, set | frozenset):
            visit(sorted(part))
        else:
            assert isinstance(part, int | float | str | bytes | np.generic | None), (
                f"a state should hold plain values, not {type(part)}"
            )
            found.update(repr(part).encode())

    visit(thing)
    return found.hexdigest()


class LossyEngine(RecordingEngine):
    """Loses some replies on the way."""

    def __init__(self, engine: Any, drop: Drop):
        super().__init__(engine)
        self.drop = drop

    def answer(self, ask: Ask, round: int) -> Replies:
        replies = super().answer(ask, round)
        return {client: reply for client, reply in replies.items() if not self.drop(ask, round, client)}


class Play:
    """A method's rounds on the local engine without workers, through the driver."""

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        *,
        seed: int = 0,
        drop: Drop = lambda *_: False,
        config: RunConfig | None = None,
    ):
        config = config or RunConfig(rounds=ROUNDS)
        self.task, self.method = task, method
        self.local = engine_for(task, method, config.train, seed)
        self.engine = LossyEngine(self.local, drop)
        self.folder = tempfile.TemporaryDirectory()
        network = task.network(seed)
        self.setup = Setup(
            params=network.read(),
            clients=task.data.clients,
            per_round=3,
            seed=seed,
            task=TaskFacts(
                task.data.classes,
                features=network.classifier.in_features,
                holdouts=tuple(holdout_id(distribution) for distribution in task.holdouts),
            ),
            config=config,
            make_params=lambda number: task.network(1000 + number).read(),
            find_part=lambda name: network.part(name).of(network.read()),
            make_client_models=lambda: ClientModelStore(ClientMemory(Path(self.folder.name))),
        )
        self.state = method.init(self.setup)
        self.done: list[Round[Any]] = []

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        self.local.close()  # the folder stays for as long as this does: states read models from it

    @property
    def exchanged(self) -> list[tuple[Ask, Replies]]:
        """Every ask, and what came back."""
        return list(zip(self.engine.asks, self.engine.replies, strict=True))

    def round(self, round: int, roster: tuple[int, ...] | None = None) -> Round[Any]:
        clients = roster or self.task.data.clients
        played = play_round(self.method, self.state, self.engine, clients, round)
        self.done.append(played.done)
        self.state = played.state
        return played.done

    def rounds(self) -> Play:
        for round in range(ROUNDS):
            self.round(round)
        return self

    def lines(self) -> list[dict[str, Any]]:
        """What the rounds report, by name, as a history has it."""
        lines = []
        for done in self.done:
            market = {} if done.market is None else done.market.line()
            lines.append({"seats": done.seats, "events": done.events, **market})
        return lines

    def evaluated(self, client: int) -> Record:
        """The evaluator's reply for what this client would predict with now."""
        offer = self.method.offer(self.state, client)
        return self.local.ask(Ask(EVALUATE, {client: offer}), ROUNDS)[client]


def has_usable_models(play: Play) -> bool:
    vectors = play.method.models(play.state).values()
    size = len(play.setup.params)
    return all(v.shape == (size,) and v.dtype == np.float32 and np.isfinite(v).all() for v in vectors)


def look_at_everything(method: Method[Any], state: Any) -> None:
    """Calls all that may be asked of a state."""
    method.offer(state, 0)
    method.models(state)
    if isinstance(method, HasClusters):
        method.preferences(state)
    if isinstance(method, HasReport):
        method.report(state)


def unless_refused(call: Callable[[], Record]) -> Record | None:
    """The record, or None where a method says that it has nothing for such a client."""
    try:
        return call()
    except NotSupportedError:
        return None
