"""The contract between methods and engines: what travels, who asks, who answers.

A method is written once, without I/O. A round is a generator: it yields one `Ask` per phase and is
sent the replies; an engine only moves records. Toy example, a whole method:

    class Mean(Method[Vector]):
        def init(self, setup):            return setup.params
        def round(self, state, roster, r):
            replies = yield Ask("train", {i: Record({"model": state}) for i in roster.clients})
            return Round(mean(reply.params["model"] for reply in replies.values()))
        def offer(self, state, client):   return Record({"model": state})
        def on_train(self, ask, mine, me):
            return Record({"model": me.train(ask.params["model"])}), mine
        def personalize(self, offer, mine, me): return offer.params["model"]

State goes in and comes out; nothing is kept on `self`. Randomness comes only from `stream(...)`.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ipfl.client import Client
    from ipfl.config import AggregateConfig
    from ipfl.deployed import Deployed
    from ipfl.shelf import Shelf

S = TypeVar("S")
ClientId = int
Vector = NDArray[np.float32]
"""All parameters of one model, flat (see `ipfl.models.Network`)."""

Fact = Any
"""An int, float, str, bool, None or a list of these: what JSON and a Flower ConfigRecord can hold."""


@dataclass(frozen=True)
class Record:
    """Every message, and all that a client remembers: named parameter vectors and named facts."""

    params: Mapping[str, Vector] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: the vectors, and the facts as JSON."""
        facts = len(json.dumps(dict(self.facts))) if self.facts else 0
        return sum(vector.nbytes for vector in self.params.values()) + facts


EMPTY = Record()


@dataclass(frozen=True)
class Ask:
    """One phase: every addressed client runs the method's `on_<action>` on its record."""

    action: str
    to: Mapping[ClientId, Record]


Replies = Mapping[ClientId, Record]
"""Replies by client in ascending id; whoever dropped out, failed or answered nonsense is absent."""


NEWCOMER: ClientId = 2**31 - 1
"""Id of a client that the server has never met, for `Method.offer`."""


def holdout_id(distribution: int) -> ClientId:
    """Id under which the server itself can be asked, on its own small holdout of one distribution.

    Negative, so that it never meets a client's. An ask to it stays on the server.
    """
    return -1 - distribution


@dataclass(frozen=True)
class Setup:
    """What the server knows before the first round. Nothing here comes from a client's data."""

    params: Vector
    """Initial parameters; all models of a method start here, so that they can be mixed."""
    clients: tuple[ClientId, ...]
    per_round: int
    """Client trainings per round, the budget that all methods share."""
    rounds: int
    classes: int
    seed: int
    holdouts: tuple[ClientId, ...] = ()
    """Ids of the server's own holdouts (`holdout_id`), empty if it has none."""
    fresh: Callable[[int], Vector] | None = None
    """Other random initial parameters, by number."""
    aggregate: AggregateConfig | None = None
    """How replies become one model; None for the mean."""
    shelf: Shelf | None = None
    """An empty shelf on disk, for methods that keep models of single clients on the server."""

    def start(self, number: int) -> Vector:
        """Initial parameters for the model of that number, for methods whose models must not start alike."""
        if number == 0:
            return self.params
        if self.fresh is None:
            raise ValueError("this setup has no other initial parameters")
        return self.fresh(number)


@dataclass(frozen=True)
class Roster:
    """Who can be asked in this round, in ascending id."""

    clients: tuple[ClientId, ...]


@dataclass(frozen=True)
class Round(Generic[S]):
    """What a finished round hands back: the next state, and what happened, for whoever keeps books."""

    state: S
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """For `metrics.jsonl`; JSON-able."""
    events: tuple[str, ...] = ()
    """Things a person should know (a client left out, a collapse), one sentence each."""


class Method(ABC, Generic[S]):
    """A federated learning method: server side (`init`, `round`, `offer`) and client side (`on_*`).

    Subclasses are frozen pydantic dataclasses whose fields are the hyper-parameters, each with a
    default and a description. To add one: a file in `methods/`, see CONTRIBUTING.md.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `ipfl methods`: what it does, and whose paper it is."""

    @abstractmethod
    def init(self, setup: Setup) -> S:
        """State before round 0."""

    @abstractmethod
    def round(self, state: S, roster: Roster, round: int) -> Generator[Ask, Replies, Round[S]]:
        """One round. Yields an ask per phase, is sent the replies, returns the next state."""

    @abstractmethod
    def offer(self, state: S, client: ClientId) -> Record:
        """What any client, seen or not, is sent to obtain its model."""

    @abstractmethod
    def personalize(self, offer: Record, mine: Record, me: Client) -> Deployed:
        """What this client would deploy now, from the offer and what it remembers; changes nothing."""

    def models(self, state: S) -> Mapping[str, Vector]:
        """Server models by name (`global`, or `cluster_0`, `cluster_1`, …) for evaluation and export."""
        return {}

    def preferences(self, state: S) -> Mapping[ClientId, int]:
        """Preferred cluster of each client as far as the server knows it; empty without clusters."""
        return {}

    def scorings(self, state: S) -> int:
        """How often `personalize` passes over a part of the client's data; a pass of training counts three.

        It is what an evaluation costs beside the test data.
        """
        return 0

    def rules(self) -> Mapping[str, Fact]:
        """Rules of the market, as whoever audits its ledger needs them; empty without a market."""
        return {}

    def opening_transfers(self, state: S) -> list[list[Fact]]:
        """Transfers before round 0, as rows [kind, source, target, amount, cluster, client]."""
        return []

    def void(self, state: S, facts: Mapping[str, Fact]) -> Mapping[str, Fact]:
        """What is recorded of a round that came to nothing, instead of what it reported itself.

        Args:
            state: The state before the round, which stays.
            facts: What the round reported; its `seats` are there.
        """
        return {"seats": [[client, cluster, how, False] for client, cluster, how, _ in facts["seats"]]}

    def report(self, state: S) -> Mapping[str, Fact]:
        """What else `summary.json` should say of a finished run; JSON-able."""
        return {}


@dataclass
class Bytes:
    """Bytes that the server sent and received."""

    down: int = 0
    up: int = 0


class Engine(Protocol):
    """Moves records and keeps client memory; knows of its method only that it can be called."""

    events: list[str]
    """Things a person should know (a worker died, a node is gone), until the loop takes them."""
    traffic: Bytes | None
    """What really travelled, until the loop takes it; None: nothing does, and the loop counts the records."""

    def present(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Those of the clients that can be asked in the round that begins."""
        ...

    def ask(self, ask: Ask, round: int) -> Replies:
        """Runs one phase. Clients that did not answer are absent from the result."""
        ...

    def committed(self, round: int) -> None:
        """This round will never be played again; memories that only it needed may go."""
        ...

    def rewind(self, round: int) -> None:
        """Clients forget what rounds after this one left: they were void, or will be played again."""
        ...

    def close(self) -> None:
        """Ends all that was started."""
        ...


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """A random stream of its own for every (seed, path), the same on every engine and worker.

    `stream(seed, "train", round, client)`: words are hashed, so no two paths meet by accident.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part % 2**32 for part in path]
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(words)))
