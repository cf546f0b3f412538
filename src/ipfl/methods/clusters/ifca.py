"""IFCA: every client picks the cluster model with the lowest loss on its data, and trains that one.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1. A client
gets all K models θ_j, estimates its cluster ĵ = argmin_j F_i(θ_j) on its training data, and trains θ_ĵ. Then,
over the participants M_t, with s_ij = 1 if ĵ = j:

- model averaging (option II): θ_j ← Σ_i s_ij·θ̃_i / Σ_i s_ij, θ̃_i trained locally from θ_j;
- gradient averaging (option I): θ_j ← θ_j − (γ/|M_t|)·Σ_i s_ij·∇F_i(θ_j), γ being the learning rate.

The models start from different random parameters. From an unlucky start one model suits nearly everyone, and
the federation collapses into FedAvg: an event, and `report` in `summary.json`. Against it the paper has
random restarts, here as in the authors' code for CIFAR (`find_good_initializer`): before the first training,
K random models are drawn and random clients choose among them, until every model is chosen by a share of the
clients (`accepted_share`: 35 % for K = 2, 10 % for K = 4). What it brings: docs/methods.md.

Departures: clients weigh by their numbers of samples; a client predicts with the model of lowest loss on its
`goal` points (under `train.use_probe` it has trained on them, as in the paper, which holds nothing back);
lower layers are never shared (the paper does so for its last data set); after `restarts` draws the best one
is taken, while the authors' code draws without a limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import Ask, ClientId, Fact, Phases, Record, Replies, Roster, Round, Setup, Vector, cluster_name
from ipfl.core.replies import Count, ReplySchema, index_below
from ipfl.core.rounds import Event
from ipfl.core.vectors import mix
from ipfl.methods.shared.cluster_models import ClusterModels, ClusterModelsMethod, best_model, read_models
from ipfl.methods.shared.random_restarts import choose_start, draw_anew
from ipfl.methods.shared.steps import average_models, mean_losses, merge, random_seats, select_clients


@dataclasses.dataclass(frozen=True)
class Clustering(ClusterModels):
    """Server state of IFCA."""

    spare: tuple[tuple[Vector, ...], ...] = ()
    """Other sets of random models to draw, until one is kept."""
    choices: Mapping[ClientId, int] = dataclasses.field(default_factory=dict)
    """Latest choice of every client that answered."""
    unused: tuple[int, ...] = ()
    """Clusters that nobody chooses."""


@dataclass(frozen=True)
class IFCA(ClusterModelsMethod[Clustering]):
    """Iterative federated clustering (Ghosh et al. 2020)."""

    name: ClassVar[str] = "ifca"
    summary: ClassVar[str] = "clients train the cluster model of lowest loss (Ghosh et al. 2020)"
    needs_probe: ClassVar[bool] = False

    clusters: int = Field(2, ge=1, description="K, number of cluster models")
    average: Literal["models", "gradients"] = Field(
        "models", description="what the server averages: locally trained models, or one gradient per client"
    )
    restarts: int = Field(
        20,
        ge=1,
        description="draws of K random models, at most, until each suits some clients; 1: no choice",
    )

    def init(self, setup: Setup) -> Clustering:
        """Every model of every set starts from random parameters of its own."""
        k = self.clusters
        spare = tuple(tuple(map(setup.start, range(k * n, k * n + k))) for n in range(1, self.restarts))
        return Clustering.start(setup, k, spare=spare)

    def round(self, state: Clustering, roster: Roster, round: int) -> Phases[Clustering]:
        """Random clients get all models; each trains the one that it chooses."""
        events: list[Event] = []
        if state.spare:
            clients = draw_anew(roster, state.per_round, state.seed, round)
            models, found = yield from choose_start((state.models, *state.spare), clients)
            state = dataclasses.replace(state, models=models, spare=())
            events.append(found)
        chosen = select_clients(roster, state.per_round, state.seed, round)
        facts = {"n": Count, "cluster": index_below(self.clusters)}
        expected = ReplySchema(
            facts, lambda sent, known: {cluster_name(known["cluster"]): state.size}, weight="n"
        )
        replies = yield Ask("train", dict.fromkeys(chosen, Record(state.named)), expected)
        choices = {client: int(reply.facts["cluster"]) for client, reply in replies.items()}
        known = merge(state.choices, choices)
        unused = tuple(k for k in range(self.clusters) if k not in known.values()) if known else ()
        if unused != state.unused:
            is_collapse = len(unused) == self.clusters - 1
            text = f"clusters that none of {len(known)} clients chooses: {list(unused) or 'none'}"
            events.append(Event("collapse" if is_collapse else "unused_clusters", None, text))
        models = tuple(self._next_model(state, k, replies) for k in range(self.clusters))
        after = dataclasses.replace(state, models=models, choices=known, unused=unused)
        return Round(after, random_seats(chosen, replies, choices), tuple(events))

    def _next_model(self, state: Clustering, cluster: int, replies: Replies) -> Vector:
        """The next model of one cluster, from the replies of all participants."""
        members = {client: reply for client, reply in replies.items() if reply.facts["cluster"] == cluster}
        before = state.models[cluster]
        model = average_models(members, cluster_name(cluster), before, state.rule)
        if self.average == "models" or model is before:
            return model
        # Each reply went one step along its own gradient; the paper divides by all participants.
        share = sum(r.facts["n"] for r in members.values()) / sum(r.facts["n"] for r in replies.values())
        return mix([before, model], [1 - share, share])

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Picks the model of lowest loss and trains it, or goes one step along its gradient."""
        cluster, model = best_model(read_models(ask), me, "train")
        if self.average == "models":
            trained = me.train(model)
        else:
            trained = model - np.float32(me.settings.lr) * me.gradient(model, "train")
        return Record(
            {cluster_name(cluster): trained}, {"n": len(me.data("train")), "cluster": cluster}
        ), mine

    def on_rate(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Mean loss of each model on the training data."""
        return Record({}, {"losses": mean_losses(read_models(ask), me, "train").tolist()}), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The model of lowest loss on what the client wants to be good at."""
        return best_model(read_models(offer), me, "goal")[1]

    def preferences(self, state: Clustering) -> Mapping[ClientId, int]:
        """Latest choice of every client that has taken part."""
        return state.choices

    def report(self, state: Clustering) -> dict[str, Fact]:
        """How many clients last chose each cluster, and whether all chose the same."""
        counts = [list(state.choices.values()).count(k) for k in range(self.clusters)]
        return {"clients_per_cluster": counts, "collapsed": 0 < len(state.unused) == self.clusters - 1}
