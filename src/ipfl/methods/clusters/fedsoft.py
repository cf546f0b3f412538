"""FedSoft: clients belong to all clusters in part, and train one model of their own between the centers.

Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022,
Algorithm 1, with K centers c_k and a local model w_i for every client:

- every τ rounds all clients get the centers and report their importance u_ik: the share of their training
  points on which center k has the smallest loss of all, or σ if there is no such point;
- for each cluster, clients are drawn with probability ∝ u_ik·n_i, without repetition;
- a client that was drawn minimises h_i(w) = f_i(w) + (λ/2)·Σ_k u_ik·‖w − c_k‖² once, inexactly: its new w_i;
- the center of a cluster is the plain mean of the w_i drawn for it: n_i is in the draw already.

A client predicts with w_i; one that never trained with the minimiser of h_i for the centers as they are. The
K proximal terms are one of strength λ·Σ_k u_ik to the anchor Σ_k u_ik·c_k / Σ_k u_ik; only that is sent.

Departures: training starts at the anchor, or while a center is random at the initial parameters (the authors'
code goes on from w_i, `start = "own"`, see docs/methods.md); each cluster draws per_round/K clients, and all
draw on in turn until per_round different ones train, which is the budget of all methods; unknown importance
counts as the same for all centers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import Ask, ClientId, Phases, Record, Replies, Roster, Round, Seat, Setup, Vector
from ipfl.core.replies import Count, PositiveShare, ReplySchema, list_of
from ipfl.core.vectors import mean
from ipfl.methods.shared.cluster_models import (
    ClusterModels,
    ClusterModelsMethod,
    draw_per_cluster,
    read_models,
)
from ipfl.methods.shared.steps import expect_update, loss_table, merge
from ipfl.training.sgd import Pull


@dataclasses.dataclass(frozen=True)
class SoftClusters(ClusterModels):
    """Server state of FedSoft; its models are the centers."""

    importance: Mapping[ClientId, tuple[float, ...]]
    """u_ik of every client that answered."""
    sizes: Mapping[ClientId, int]
    """n_i of the same clients."""
    random: tuple[int, ...]
    """Clusters whose center nobody has trained yet."""

    def importance_of(self, client: ClientId) -> tuple[float, ...]:
        """u_ik; the same for all clusters if the client never answered."""
        return self.importance.get(client, (1 / len(self.models),) * len(self.models))


@dataclass(frozen=True)
class FedSoft(ClusterModelsMethod[SoftClusters]):
    """Soft clustered federated learning (Ruan and Joe-Wong 2022)."""

    name: ClassVar[str] = "fedsoft"
    summary: ClassVar[str] = "local models between cluster centers (Ruan and Joe-Wong 2022)"
    needs_probe: ClassVar[bool] = False

    clusters: int = Field(2, ge=1, description="K, number of centers")
    proximal: float = Field(0.1, ge=0, description="λ, strength of the pull towards the centers")
    smoother: float = Field(
        1e-4, gt=0, lt=1, description="σ, importance of a center that is best on no point"
    )
    estimate_every: int = Field(2, ge=1, description="τ, rounds between estimates of the importance by all")
    start: Literal["centers", "own"] = Field(
        "centers", description="where training starts: between the centers, or at the client's last model"
    )

    def init(self, setup: Setup) -> SoftClusters:
        """Centers with different random parameters; equal ones would stay equal."""
        k = self.clusters
        return SoftClusters.start(setup, k, importance={}, sizes={}, random=tuple(range(k)))

    def round(self, state: SoftClusters, roster: Roster, round: int) -> Phases[SoftClusters]:
        """Perhaps an estimate of the importance; then those drawn train, and centers are their means."""
        if round % self.estimate_every == 0:
            state = yield from self._estimate(state, roster)
        drawn = self._draw(state, roster, round)
        to = {client: self._anchor(state, client) for client in sorted(set().union(*drawn))}
        replies = yield Ask("train", to, expect_update({"model": state.size}))
        updates = [{c: replies[c] for c in clients if c in replies} for clients in drawn]
        after = state.updated(updates, "model", equal=True)
        random = tuple(k for k in state.random if len(updates[k]) < state.rule.fewest)
        seats = (Seat(c, k, "random", c in replies) for k, clients in enumerate(drawn) for c in clients)
        return Round(dataclasses.replace(after, random=random), tuple(seats))

    def _estimate(self, state: SoftClusters, roster: Roster) -> Generator[Ask, Replies, SoftClusters]:
        """Everyone reports how important the centers are to it; earlier answers of all others stay."""
        facts = {"importance": list_of(PositiveShare, self.clusters), "n": Count}
        expected = ReplySchema(facts, weight="n")
        replies = yield Ask("estimate", dict.fromkeys(roster.clients, Record(state.named)), expected)
        importance = merge(state.importance, {c: tuple(r.facts["importance"]) for c, r in replies.items()})
        sizes = merge(state.sizes, {client: reply.facts["n"] for client, reply in replies.items()})
        return dataclasses.replace(state, importance=importance, sizes=sizes)

    def _draw(self, state: SoftClusters, roster: Roster, round: int) -> list[list[ClientId]]:
        """Per cluster the clients drawn for it, ascending."""
        typical = float(np.mean(list(state.sizes.values()))) if state.sizes else 1.0
        n = np.array([state.sizes.get(client, typical) for client in roster.clients])
        u = np.array([state.importance_of(client) for client in roster.clients])
        drawn = draw_per_cluster(u * n[:, None], state.per_round, state.seed, round)
        return [sorted(roster.clients[row] for row in rows) for rows in drawn]

    def _anchor(self, state: SoftClusters, client: ClientId) -> Record:
        """The point to which the K proximal terms pull a client, how strongly, and where it starts."""
        u = state.importance_of(client)
        facts = {"strength": self.proximal * sum(u), "random": bool(state.random)}
        return Record({"model": mean(state.models, u)}, facts)

    def on_estimate(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Importance of every center on the training data."""
        u = center_importance(loss_table(read_models(ask), me, "train"), self.smoother)
        return Record({}, {"importance": u.tolist(), "n": len(me.data("train"))}), mine

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the client's own model, pulled towards the centers."""
        anchor = ask.params["model"]
        between = me.initial if ask.facts["random"] else anchor
        start = between if self.start == "centers" else mine.params.get("own", me.initial)
        own = me.train(start, pull=Pull(anchor, float(ask.facts["strength"])))
        return Record({"model": own}, {"n": len(me.data("train"))}), Record({"own": own})

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model; one that never trained starts between the centers and does so now."""
        if "own" in mine.params:
            return mine.params["own"]
        centers = read_models(offer)
        u = center_importance(loss_table(centers, me, "train"), self.smoother)
        anchor = mean(centers, u.tolist())
        return me.train(anchor, pull=Pull(anchor, self.proximal * float(u.sum())))

    def preferences(self, state: SoftClusters) -> dict[ClientId, int]:
        """The most important cluster of every client that answered."""
        return {client: int(np.argmax(u)) for client, u in state.importance.items()}


def center_importance(losses: NDArray[np.float64], smoother: float) -> NDArray[np.float64]:
    """u_ik = max(n_ik/n_i, σ) from (K, n_i) losses, n_ik being the points that center k fits best."""
    nearest = np.bincount(losses.argmin(axis=0), minlength=len(losses))
    return np.asarray(np.maximum(nearest / losses.shape[1], smoother))
