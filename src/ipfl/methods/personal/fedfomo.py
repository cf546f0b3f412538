"""FedFomo: each client mixes the models of those others that help it most on its own validation data.

Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021. The server keeps
every client's last model θ_n on disk. Before client i trains, it weighs M of them, its own included, against
the model θ_i^{t−1} that its last training began with, by the loss L_i on its validation data (`probe`):

    w_n = (L_i(θ_i^{t−1}) − L_i(θ_n)) / ‖θ_n − θ_i^{t−1}‖

and starts from θ_i^t = θ_i^{t−1} + Σ_n w̃_n·(θ_n − θ_i^{t−1}), w̃ being the positive weights divided by their
sum; from θ_i^{t−1} if there is none. The server adds all weights to row i of its affinity matrix P. Whose
M − 1 models a client gets is ε-greedy by P_ij: the largest left, or any with probability ε, which falls.

A client predicts with its own model as it was after its last training. A client that has none, seen or not,
weighs M of the server's models against the initial one, by the loss on its `goal` points, and predicts with
their mixture.

Departures:
- A client's own model is not sent to it: it has that. Models of clients that did not train last can be sent.
- The norm is the Euclidean one; the authors' code takes the sum of absolute values by default.
- P gets the weights as they are. The authors' code first divides them by their sum, which may be near zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client, Part
from ipfl.core import Ask, ClientId, ClientModels, Method, Phases, Record, Roster, Round, Setup, Vector
from ipfl.core.replies import Count, Number, ReplySchema, list_of
from ipfl.core.streams import stream
from ipfl.core.vectors import distance, mix
from ipfl.methods.shared.steps import RecordsOnDemand, draw_clients, mean_losses, random_seats, select_clients


@plain_dataclass(frozen=True)
class Affinities:
    """State of the server: everyone's last model, and who helped whom."""

    per_round: int
    seed: int
    size: int
    """Parameters of a model."""
    models: ClientModels
    affinity: Mapping[ClientId, Mapping[ClientId, float]]
    """P: by client, the summed weights of the other models that it has weighed; all else is 0."""

    def message(self, others: Sequence[ClientId]) -> Record:
        """Models of these clients, as they are sent."""
        return Record({model_name(j): self.models[j] for j in others}, {"of": list(others)})


def model_name(client: ClientId) -> str:
    """What a client's model is called in a record."""
    return f"model_{client}"


@dataclass(frozen=True)
class FedFomo(Method[Affinities]):
    """Each client mixes models of others by how much they help it (Zhang et al. 2021)."""

    name: ClassVar[str] = "fedfomo"
    summary: ClassVar[str] = "each client mixes the models of others that help it (Zhang et al. 2021)"

    models_each: int = Field(10, ge=2, description="M, models weighed before a training, its own included")
    epsilon: float = Field(0.3, ge=0, le=1, description="ε, chance of a random model in the first round")
    epsilon_decay: float = Field(0.05, ge=0, le=1, description="what ε falls by in every round")

    def init(self, setup: Setup) -> Affinities:
        """Nobody has a model yet."""
        return Affinities(setup.per_round, setup.seed, len(setup.params), setup.client_model_store(), {})

    def round(self, state: Affinities, roster: Roster, round: int) -> Phases[Affinities]:
        """Random clients mix, train and send their models; their weights are added to P."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        epsilon = max(self.epsilon - self.epsilon_decay * round, 0)
        rng = stream(state.seed, "models", round)
        others = {client: self._choose_others(state, client, epsilon, rng) for client in chosen}
        expected = ReplySchema(
            lambda sent: {"n": Count, "weights": list_of(Number, len(sent.facts["of"]))},
            {"model": state.size},
        )
        to = RecordsOnDemand(chosen, lambda client: state.message(others[client]))
        replies = yield Ask("train", to, expected)
        affinity = dict(state.affinity)
        for client, reply in replies.items():
            so_far = affinity.get(client, {})
            weights = zip(others[client], reply.facts["weights"], strict=True)
            affinity[client] = {**so_far, **{j: so_far.get(j, 0.0) + weight for j, weight in weights}}
        models = state.models.put({client: reply.params["model"] for client, reply in replies.items()}, round)
        return Round(replace(state, models=models, affinity=affinity), random_seats(chosen, replies))

    def _choose_others(
        self, state: Affinities, client: ClientId, epsilon: float, rng: np.random.Generator
    ) -> list[ClientId]:
        """Whose models a client gets: ε-greedy by its row of P, ties at random."""
        left = [j for j in state.models.clients if j != client]
        row = state.affinity.get(client, {})
        affinity = np.array([row.get(j, 0.0) for j in left])
        left = [left[place] for place in np.lexsort((rng.random(len(left)), -affinity))]
        count = min(self.models_each - 1, len(left))
        return [left.pop(rng.integers(len(left)) if rng.random() < epsilon else 0) for _ in range(count)]

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Weighs the models on `probe`, starts from their mixture, trains."""
        before = mine.params.get("start", me.initial)
        own = [mine.params["own"]] if "own" in mine.params else []
        others = [ask.params[model_name(j)] for j in ask.facts["of"]]
        weights = weigh_models([*others, *own], before, me, "probe")
        start = mix_models([*others, *own], weights, before)
        trained = me.train(start)
        facts = {"n": len(me.data("train")), "weights": weights[: len(others)].tolist()}
        return Record({"model": trained}, facts), Record({"own": trained, "start": start})

    def offer(self, state: Affinities, client: ClientId) -> Record:
        """Nothing for clients with a model; the same M random models for all others."""
        if client in state.models or not len(state.models):
            return state.message([])
        rng = stream(state.seed, "newcomers")
        return state.message(draw_clients(Roster(state.models.clients), self.models_each, rng))

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model, or its first mixture."""
        if "own" in mine.params:
            return mine.params["own"]
        models = [offer.params[model_name(j)] for j in offer.facts["of"]]
        return mix_models(models, weigh_models(models, me.initial, me, "goal"), me.initial)


def weigh_models(models: Sequence[Vector], before: Vector, me: Client, part: Part) -> NDArray[np.float64]:
    """w_n of each model for this client, by its loss on a part; 0 for one that is the model before itself."""
    if not models:
        return np.empty(0)
    loss, *losses = mean_losses([before, *models], me, part)
    distances = [distance(model, before) for model in models]
    return np.array([(loss - other) / d if d else 0.0 for other, d in zip(losses, distances, strict=True)])


def mix_models(models: Sequence[Vector], weights: NDArray[np.float64], before: Vector) -> Vector:
    """θ_i^t: the model before, moved towards the others by their positive weights."""
    positive = np.maximum(weights, 0)
    return mix(models, positive / positive.sum()) if positive.any() else before
