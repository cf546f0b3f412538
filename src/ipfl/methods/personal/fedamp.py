"""FedAMP: the server keeps a cloud model for each client, mixed of everyone's models by their likeness.

Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, Algorithm 1. With the
attention-inducing function A(x) = 1 − exp(−x/σ), the cloud model of client i is

    u_i = ξ_ii·w_i + Σ_{j≠i} ξ_ij·w_j,    ξ_ij = α·A'(‖w_i − w_j‖²) = α/σ·exp(−‖w_i − w_j‖²/σ),
    ξ_ii = 1 − Σ_{j≠i} ξ_ij

so that clients with similar models draw each other closer, and the client solves

    w_i = argmin_w F_i(w) + λ/(2α)·‖w − u_i‖²

by SGD from u_i. It predicts with w_i as it was after its last training, or with the common start before its
first.
A client that never took part cannot be served: without a model w_i there is nothing to attend with.

Departures:
- The paper wants α small enough for ξ_ii ≥ 0, which depends on the models. Here the step of client i is α, or
  1/(A'(0) + Σ_{j≠i} A'(‖w_i − w_j‖²)) where that is smaller: its own model then counts as another one at
  distance 0 would. α stays the same in all rounds.
- α = 10⁴ and λ = 1 are those of public implementations, which differ in σ, as it depends on how far apart
  models are. The default was chosen on the digits task, and is not far from the best on letters. With
  λ/α = 10⁻⁴ the pull is faint: what holds clients together is that they start from u_i.
- All clients are in every round of the paper. Here some are, and attend to the last model of everyone else.

Memory: a few vectors for each client that trains, and one of all the others at a time. The rules of
`aggregate` do not apply here: there is no mean over replies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import EMPTY, Ask, ClientId, ClientModels, Method, Phases, Record, Roster, Round, Setup, Vector
from ipfl.methods.shared.steps import expect_update, random_seats, refuse_strangers, select_clients
from ipfl.training.sgd import Pull


@plain_dataclass(frozen=True)
class Cloud:
    """State of the server: everyone's last model, and the start of those who have none yet."""

    clients: tuple[ClientId, ...]
    per_round: int
    seed: int
    start: Vector
    models: ClientModels


@dataclass(frozen=True)
class FedAMP(Method[Cloud]):
    """A cloud model for each client, by attention to similar models (Huang et al. 2021)."""

    name: ClassVar[str] = "fedamp"
    summary: ClassVar[str] = "own models, drawn to similar ones by attention (Huang et al. 2021)"
    needs_probe: ClassVar[bool] = False

    sigma: float = Field(
        0.3, gt=0, allow_inf_nan=False, description="σ, squared distance at which attention has fallen to 1/e"
    )
    alpha: float = Field(
        1e4,
        gt=0,
        allow_inf_nan=False,
        description="α, step towards similar models; lowered where it is too long",
    )
    lam: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="λ, strength of the pull to the cloud model, times α"
    )

    def init(self, setup: Setup) -> Cloud:
        """Everyone's model is the common start."""
        return Cloud(setup.clients, setup.per_round, setup.seed, setup.params, setup.client_model_store())

    def round(self, state: Cloud, roster: Roster, round: int) -> Phases[Cloud]:
        """Random clients get their cloud models, train from there and send what came of it."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        clouds = self._clouds(state, chosen)
        to = {client: Record({"cloud": u}) for client, u in clouds.items()}
        replies = yield Ask("train", to, expect_update({"model": len(state.start)}))
        models = state.models.put({client: reply.params["model"] for client, reply in replies.items()}, round)
        return Round(replace(state, models=models), random_seats(chosen, replies))

    def _clouds(self, state: Cloud, chosen: Iterable[ClientId]) -> dict[ClientId, Vector]:
        """u_i = w_i + Σ_{j≠i} ξ_ij·(w_j − w_i) of the chosen clients, with one other model at a time."""
        models = {i: state.models.get(i, state.start) for i in chosen}
        moves = {i: np.zeros(len(model)) for i, model in models.items()}
        attention = dict.fromkeys(models, 0.0)
        for j in state.models.clients:
            other = state.models[j].astype(np.float64)
            for i, model in models.items():
                if i != j:
                    gap = other - model
                    # Not gap @ gap: its threads would fight those of the clients for the cores.
                    likeness = math.exp(-float(np.einsum("i,i", gap, gap)) / self.sigma)
                    attention[i] += likeness
                    moves[i] += likeness * gap
        steps = {i: min(self.alpha / self.sigma, 1 / (1 + attention[i])) for i in models}
        return {i: (model + steps[i] * moves[i]).astype(np.float32) for i, model in models.items()}

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training from the cloud model, with the proximal pull back to it."""
        cloud = ask.params["cloud"]
        own = me.train(cloud, pull=Pull(cloud, self.lam / self.alpha))
        return Record({"model": own}, {"n": len(me.data("train"))}), Record({"own": own})

    def offer(self, state: Cloud, client: ClientId) -> Record:
        """Nothing: the clients of the federation have their own models."""
        refuse_strangers(client, state.clients, "attention needs a model of the client's own")
        return EMPTY

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model, or the common start if it has not trained yet."""
        return mine.params.get("own", me.initial)
