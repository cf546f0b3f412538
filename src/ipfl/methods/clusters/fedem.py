"""FedEM: each client's data is a mixture of M distributions, each with a learner of its own.

Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021, Algorithm 1. A
participating client t gets all M learners θ_m and knows its mixture weights π_t:

- E-step: q_t(z_i = m) ∝ π_tm·exp(−ℓ(h_θm(x_i), y_i)) for each of its training points;
- M-step: π_tm = Σ_i q_t(z_i = m)/n_t, and SGD on Σ_i q_t(z_i = m)·ℓ(h_θm(x_i), y_i) for each m;
- the server: θ_m = Σ_t (n_t/n)·θ_tm.

It predicts with Σ_m π_tm·h_θm(x). Cost: a client sends, receives and trains M models where FedAvg has one, so
that with the same number of clients a round it takes M times the training (`report` in `summary.json` says
so), and M models to predict.

The paper tunes the learning rate of each method. Its code has that of FedEM at 1 (FEMNIST, CIFAR-100), 3
(CIFAR-10) and 5 (EMNIST) times that of FedAvg; `lr_factor` is their median.

Departures: the server averages over those that took part, not over all clients; mixture weights stay with
the client, as in the paper, but it predicts with weights fitted anew, by EM with the learners as they are,
on its `goal` points: those it remembers belong to the learners of the last round it took part in. (Under
`train.use_probe` they are trained on as well, as in the paper, which holds nothing back.) A client that
never took part is treated in the same way, as in the paper. The M learners start from different random
parameters.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import Ask, Fact, Phases, Record, Roster, Round, Setup, cluster_name
from ipfl.methods.shared.cluster_models import ClusterModels, ClusterModelsMethod, read_models
from ipfl.methods.shared.steps import expect_update, loss_table, random_seats, select_clients
from ipfl.training.network import Network
from ipfl.training.sgd import Batch, Mixture, Objective

MIXTURE_STEPS = 100
"""Steps of EM for the mixture weights alone; a concave problem, on which a step costs next to nothing."""


@dataclass(frozen=True)
class FedEM(ClusterModelsMethod[ClusterModels]):
    """Federated expectation maximisation (Marfoq et al. 2021)."""

    name: ClassVar[str] = "fedem"
    gives_one_network: ClassVar[bool] = False
    summary: ClassVar[str] = "clients mix M learners and train all of them by EM (Marfoq et al. 2021)"
    needs_probe: ClassVar[bool] = False

    clusters: int = Field(2, ge=1, description="M, number of learners")
    lr_factor: float = Field(
        2.0, gt=0, description="learners train with so many times train.lr: their gradients are shares of one"
    )

    def init(self, setup: Setup) -> ClusterModels:
        """Learners with different random parameters: equal ones would stay equal."""
        return ClusterModels.start(setup, self.clusters)

    def round(self, state: ClusterModels, roster: Roster, round: int) -> Phases[ClusterModels]:
        """Random clients train all learners; each learner becomes the mean of its copies."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        vectors = dict.fromkeys(state.named, state.size)
        replies = yield Ask("train", dict.fromkeys(chosen, Record(state.named)), expect_update(vectors))
        return Round(state.updated([replies] * self.clusters), random_seats(chosen, replies))

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """One E-step and one M-step; the mixture weights stay with the client."""
        learners = read_models(ask)
        losses = loss_table(learners, me, "train")
        weights = mine.facts.get("weights", [1 / self.clusters] * self.clusters)
        shares = responsibilities(np.asarray(weights), losses)
        lr = self.lr_factor * me.settings.lr
        trained = {
            cluster_name(m): me.train(learner, lr=lr, objective=weighted_loss(shares[m], me.network))
            for m, learner in enumerate(learners)
        }
        return Record(trained, {"n": losses.shape[1]}), Record({}, {"weights": shares.mean(axis=1).tolist()})

    def personalize(self, offer: Record, mine: Record, me: Client) -> Mixture:
        """The learners' predictions, mixed as fits what the client wants to be good at."""
        learners = read_models(offer)
        weights = mixture_weights(loss_table(learners, me, "goal"))
        return Mixture(tuple(learners), tuple(weights.tolist()))

    def report(self, state: ClusterModels) -> dict[str, Fact]:
        """What a seat costs, in trainings of one model."""
        return {"trainings_per_seat": self.clusters}


def responsibilities(weights: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M, n): the E-step, q(z_i = m) ∝ π_m·exp(−ℓ_mi).

    Args:
        weights: (M,) mixture weights π.
        losses: (M, n) loss of every point under every learner.
    """
    logs = np.log(np.maximum(weights, np.finfo(float).tiny))[:, None] - losses
    odds = np.exp(logs - logs.max(axis=0))
    return np.asarray(odds / odds.sum(axis=0))


def mixture_weights(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M,): the most likely mixture weights of some points, with the learners as they are."""
    weights = np.full(len(losses), 1 / len(losses))
    for _ in range(MIXTURE_STEPS):
        weights = responsibilities(weights, losses).mean(axis=1)
    return weights


def weighted_loss(shares: NDArray[np.float64], network: Network) -> Objective:
    """The M-step's objective: Σ_i q_i·ℓ_i over a batch, divided by its size."""
    weights = network.put(shares.astype(np.float32))

    def add_gradient(network: Network, batch: Batch) -> None:
        losses = network.loss.per_point(network.forward(batch.inputs), batch.labels)
        (losses @ weights[batch.positions] / len(batch)).backward()  # type: ignore[no-untyped-call]

    return add_gradient
