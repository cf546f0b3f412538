"""FedFomo: each client mixes the models of those others that help it most on its own validation data.

Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021. The server keeps
every client's last model θ_n. Before client i trains again, it weighs M of them, its own included, against
the model θ_i^{t−1} that its last training began with, by the loss L_i on its validation data (`probe`):

    w_n = (L_i(θ_i^{t−1}) − L_i(θ_n)) / ‖θ_n − θ_i^{t−1}‖

and starts from θ_i^t = θ_i^{t−1} + Σ_n w̃_n·(θ_n − θ_i^{t−1}), where w̃ are the positive weights divided by
their sum; if none is positive, it starts from θ_i^{t−1} again. The server adds the weights,
negative ones too, to row i of its affinity matrix P. Which M − 1 models of others the client gets is
ε-greedy: each is that of the largest P_ij left, or with probability ε any that is left; ε falls by a constant
per round.

What a client deploys is its own model, as it was after its last training. Whoever has none, seen or not,
weighs M of the server's models against the initial one, and deploys the mixture that it would start from.

M, ε and its decay are those of the authors' commands, which have M = 5 and M = 10; the larger did better
here.

Departures:
- A client's own model is not sent to it: it has that, and always weighs it.
- The norm is the Euclidean one; the authors' code takes the sum of absolute values unless told otherwise.
- The server keeps all models, so that those of clients that did not train last can be sent as well.
- P gets the weights as they are. The authors' code first divides them by their sum, which may be near zero.

Memory: the models are on disk; a client's M − 1 are read when its turn comes. The rules of `aggregate` have
no say here: nothing is averaged on the server.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import (
    Ask,
    ClientId,
    ClientModels,
    Method,
    Record,
    Replies,
    Roster,
    Round,
    Setup,
    Vector,
    stream,
)
from ipfl.core.replies import Count, Number, ReplySchema, list_of
from ipfl.core.vectors import distance, mix
from ipfl.methods.cluster_models import WORST_LOSS
from ipfl.methods.steps import choose, client_models, random_seats


@plain_dataclass(frozen=True)
class Affinities:
    """State of the server: everyone's last model, and who helped whom."""

    per_round: int
    seed: int
    size: int
    """Parameters of a model."""
    models: ClientModels
    affinity: Mapping[ClientId, Mapping[ClientId, float]]
    """P: by client, what the models of others that it has weighed have been worth to it; all else is 0."""

    def message(self, others: Sequence[ClientId]) -> Record:
        """Models of these clients, as they are sent."""
        return Record({model_name(j): self.models[j] for j in others}, {"of": list(others)})


class Messages(Mapping[ClientId, Record]):
    """Who is sent whose models; a record is made when its client's turn comes, and not kept."""

    def __init__(self, state: Affinities, sent: Mapping[ClientId, Sequence[ClientId]]):
        self.state, self.sent = state, sent

    def __getitem__(self, client: ClientId) -> Record:
        return self.state.message(self.sent[client])

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.sent)

    def __len__(self) -> int:
        return len(self.sent)


def model_name(client: ClientId) -> str:
    """What a client's model is called in a record."""
    return f"model_{client}"


@dataclass(frozen=True)
class FedFomo(Method[Affinities]):
    """Each client mixes models of others by their worth to it (Zhang et al. 2021)."""

    name: ClassVar[str] = "fedfomo"
    summary: ClassVar[str] = "each client mixes the models of others that help it (Zhang et al. 2021)"

    models_each: int = Field(
        10, ge=2, description="M, models that a client weighs before it trains, its own included"
    )
    epsilon: float = Field(0.3, ge=0, le=1, description="ε, chance of a random model in the first round")
    epsilon_decay: float = Field(0.05, ge=0, le=1, description="what ε falls by in every round")

    def init(self, setup: Setup) -> Affinities:
        """Nobody has a model yet."""
        return Affinities(setup.per_round, setup.seed, len(setup.params), client_models(setup), {})

    def round(
        self, state: Affinities, roster: Roster, round: int
    ) -> Generator[Ask, Replies, Round[Affinities]]:
        """Random clients mix, train and send their models; P learns what the others' were worth."""
        chosen = choose(roster, state.per_round, stream(state.seed, "select", round))
        epsilon = max(self.epsilon - self.epsilon_decay * round, 0)
        rng = stream(state.seed, "models", round)
        sent = {client: self._others(state, client, epsilon, rng) for client in chosen}
        update = ReplySchema(
            lambda sent: {"n": Count, "weights": list_of(Number, len(sent.facts["of"]))},
            {"model": state.size},
        )
        replies = yield Ask("train", Messages(state, sent), update)
        affinity = dict(state.affinity)
        for client, reply in replies.items():
            so_far = affinity.get(client, {})
            added = zip(sent[client], reply.facts["weights"], strict=True)
            affinity[client] = {**so_far, **{j: so_far.get(j, 0.0) + weight for j, weight in added}}
        models = state.models.put({client: reply.params["model"] for client, reply in replies.items()}, round)
        return Round(replace(state, models=models, affinity=affinity), random_seats(chosen, replies))

    def _others(
        self, state: Affinities, client: ClientId, epsilon: float, rng: np.random.Generator
    ) -> list[ClientId]:
        """Whose models a client gets: ε-greedy by its row of P, ties at random."""
        left = [j for j in state.models.clients if j != client]
        known = state.affinity.get(client, {})
        worth = np.array([known.get(j, 0.0) for j in left])
        left = [left[k] for k in np.lexsort((rng.random(len(left)), -worth))]
        count = min(self.models_each - 1, len(left))
        return [left.pop(rng.integers(len(left)) if rng.random() < epsilon else 0) for _ in range(count)]

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Weighs the models on `probe`, starts from their mixture, trains."""
        before = mine.params.get("start", me.initial)
        own = [mine.params["own"]] if "own" in mine.params else []
        models = [*(ask.params[model_name(j)] for j in ask.facts["of"]), *own]
        weights = worth(models, before, me)
        start = mixture(models, weights, before)
        trained = me.train(start)
        facts = {"n": len(me.data("train")), "weights": weights[: len(ask.facts["of"])].tolist()}
        return Record({"model": trained}, facts), Record({"own": trained, "start": start})

    def offer(self, state: Affinities, client: ClientId) -> Record:
        """Nothing for clients with a model; the same M random models for all others."""
        if client in state.models:
            return state.message([])
        count = min(self.models_each, len(state.models))
        rng = stream(state.seed, "newcomers")
        return state.message(choose(Roster(state.models.clients), count, rng) if count else [])

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model, or its first mixture."""
        if "own" in mine.params:
            return mine.params["own"]
        models = [offer.params[model_name(j)] for j in offer.facts["of"]]
        return mixture(models, worth(models, me.initial, me), me.initial)


def worth(models: Sequence[Vector], before: Vector, me: Client) -> NDArray[np.float64]:
    """w_n of each model for this client; 0 for one that is the model before itself."""

    def loss(model: Vector) -> float:
        return float(np.nan_to_num(me.losses(model, "probe"), nan=WORST_LOSS, posinf=WORST_LOSS).mean())

    here = loss(before) if models else 0.0
    far = [distance(model, before) for model in models]
    return np.array([(here - loss(m)) / d if d else 0.0 for m, d in zip(models, far, strict=True)])


def mixture(models: Sequence[Vector], weights: NDArray[np.float64], before: Vector) -> Vector:
    """θ_i^t: the model before, moved towards the others by their positive weights."""
    positive = np.maximum(weights, 0)
    return mix(models, positive / positive.sum()) if positive.any() else before
