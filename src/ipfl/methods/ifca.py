"""IFCA: every client picks the cluster model with the lowest loss on its data, and trains that one.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1. A client gets
all K models θ_j, estimates its cluster ĵ = argmin_j F_i(θ_j) on its training data and works on θ_ĵ alone. Then,
over the participants M_t, with s_ij = 1 if ĵ = j:

- model averaging (option II): θ_j ← Σ_i s_ij·θ̃_i / Σ_i s_ij, θ̃_i trained locally from θ_j;
- gradient averaging (option I): θ_j ← θ_j − (γ/|M_t|)·Σ_i s_ij·∇F_i(θ_j), γ being the learning rate.

The models start from different random parameters. From an unlucky start one model suits nearly everyone, and
the federation collapses into FedAvg: an event, and `report` in `summary.json`. The paper's answer is random
restarts; as in the authors' code for CIFAR, starts are told apart before the first training. Random clients
score `restarts` sets of K models, and the set goes on whose smallest cluster is chosen by most clients; among
equals, that of lowest mean loss. (By mean loss alone, seeds 100 to 109 of the default task found the clusters
in 5 cases, one random set in 9: a set that has collapsed learns faster at first.)

Departures: clients are weighed by their numbers of samples in both options (the paper has clients of equal
sizes); a client predicts with the model of lowest loss on its held-back `goal` points, seen or not; the
sharing of lower layers between clusters, which the paper has for its last data set, is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import Ask, ClientId, Event, Fact, Record, Replies, Roster, Round, Setup, Vector, stream
from ipfl.core.replies import Count, Number, ReplySchema, index_below, list_of
from ipfl.core.vectors import mix
from ipfl.methods.cluster_models import ClusterModels, ClusterModelsMethod, best_model, loss_table
from ipfl.methods.steps import average, choose, random_seats


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Server state of IFCA."""

    clusters: ClusterModels
    spare: tuple[ClusterModels, ...] = ()
    """Other random starts, until one is kept."""
    choices: Mapping[ClientId, int] = dataclasses.field(default_factory=dict)
    """Latest choice of every client that answered."""
    unused: tuple[int, ...] = ()
    """Clusters that nobody chooses, as the last event said."""


@dataclass(frozen=True)
class IFCA(ClusterModelsMethod[Clustering]):
    """Iterative federated clustering (Ghosh et al. 2020)."""

    name: ClassVar[str] = "ifca"
    summary: ClassVar[str] = "clients train the cluster model of lowest loss (Ghosh et al. 2020)"

    clusters: Annotated[int, Field(ge=1)] = Field(2, description="K, number of cluster models")
    average: Literal["models", "gradients"] = Field(
        "models", description="what the server averages: locally trained models, or one gradient per client"
    )
    restarts: Annotated[int, Field(ge=1)] = Field(
        1, description="sets of K random models to choose from before the first training"
    )

    def init(self, setup: Setup) -> Clustering:
        """Every model of every set starts from random parameters of its own."""
        k = self.clusters
        first, *spare = (ClusterModels.start(setup, k, k * number) for number in range(self.restarts))
        return Clustering(first, tuple(spare))

    def cluster_models(self, state: Clustering) -> ClusterModels:
        """The set that goes on."""
        return state.clusters

    def round(
        self, state: Clustering, roster: Roster, round: int
    ) -> Generator[Ask, Replies, Round[Clustering]]:
        """Random clients get all models; each trains the one that it chooses."""
        events: list[Event] = []
        if state.spare:
            state = yield from self._choose_start(state, roster, round, events)
        before = state.clusters
        chosen = choose(roster, before.per_round, stream(before.seed, "select", round))
        update = ReplySchema(
            {"n": Count, "cluster": index_below(self.clusters)},
            lambda sent, facts: {[*sent.params][facts["cluster"]]: before.size},
        )
        replies = yield Ask("train", dict.fromkeys(chosen, Record(before.named)), update)
        choices = {client: int(reply.facts["cluster"]) for client, reply in replies.items()}
        models = tuple(self._next_model(before, k, replies) for k in range(self.clusters))
        known = dict(sorted({**state.choices, **choices}.items()))
        unused = tuple(k for k in range(self.clusters) if k not in known.values()) if known else ()
        if unused != state.unused:
            collapsed = " (collapse)" if len(unused) == self.clusters - 1 else ""
            text = f"clusters that none of {len(known)} clients chooses: {list(unused) or 'none'}{collapsed}"
            events.append(Event("collapse" if collapsed else "unused_clusters", None, text))
        after = Clustering(dataclasses.replace(before, models=models), (), known, unused)
        return Round(after, random_seats(chosen, replies, choices), tuple(events))

    def _choose_start(
        self, state: Clustering, roster: Roster, round: int, events: list[Event]
    ) -> Generator[Ask, Replies, Clustering]:
        """Random clients score all sets; the one over which their choices spread best goes on."""
        sets = (state.clusters, *state.spare)
        clients = choose(roster, sets[0].per_round, stream(sets[0].seed, "restarts", round))
        every = dataclasses.replace(sets[0], models=tuple(model for one in sets for model in one.models))
        rating = ReplySchema({"losses": list_of(Number, len(every.models))})
        replies = yield Ask("rate", dict.fromkeys(clients, Record(every.named)), rating)
        rows = [replies[client].facts["losses"] for client in sorted(replies)]
        best = best_start(np.asarray(rows).reshape(-1, len(sets), self.clusters)) if rows else 0
        text = f"random start {best} of {len(sets)} goes on, by the choices of {len(rows)} clients"
        events.append(Event("start_chosen", None, text))
        return Clustering(sets[best])

    def _next_model(self, before: ClusterModels, cluster: int, replies: Replies) -> Vector:
        """The next model of one cluster, from the replies of all participants."""
        members = {client: reply for client, reply in replies.items() if reply.facts["cluster"] == cluster}
        model = average(members, [*before.named][cluster], before.models[cluster], before.rule)
        if self.average == "models" or not members:
            return model
        # Each reply went one step along its own gradient; the paper divides by all participants.
        share = sum(r.facts["n"] for r in members.values()) / sum(r.facts["n"] for r in replies.values())
        return mix([before.models[cluster], model], [1 - share, share])

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Picks the model of lowest loss and trains it, or goes one step along its gradient."""
        cluster, name = best_model(ask.params, me, "train")
        start = ask.params[name]
        if self.average == "models":
            model = me.train(start)
        else:
            model = start - np.float32(me.settings.lr) * me.gradient(start, "train")
        return Record({name: model}, {"n": len(me.data("train")), "cluster": cluster}), mine

    def on_rate(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Mean loss of each model on the training data."""
        return Record({}, {"losses": loss_table(ask.params, me, "train").mean(axis=1).tolist()}), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The model of lowest loss on what the client wants to be good at."""
        _, name = best_model(offer.params, me, "goal")
        return offer.params[name]

    def preferences(self, state: Clustering) -> Mapping[ClientId, int]:
        """Latest choice of every client that has taken part."""
        return state.choices

    def report(self, state: Clustering) -> dict[str, Fact]:
        """How many clients last chose each cluster, and whether all chose the same."""
        counts = [list(state.choices.values()).count(k) for k in range(self.clusters)]
        return {"clients_per_cluster": counts, "collapsed": 0 < len(state.unused) == self.clusters - 1}


def best_start(losses: NDArray[np.float64]) -> int:
    """Of (clients, sets, K) losses, the set whose smallest cluster is largest; then that of lowest loss."""
    chosen = losses.argmin(axis=2)[:, :, None] == np.arange(losses.shape[2])
    smallest = chosen.sum(axis=0).min(axis=1)
    return int(np.lexsort((losses.min(axis=2).mean(axis=0), -smallest))[0])
