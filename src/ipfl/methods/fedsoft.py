"""FedSoft: clients belong to all clusters in part, and train one model of their own between the centers.

Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022,
Algorithm 1, with K centers c_k and a local model w_i for every client:

- every τ rounds all clients get the centers and tell their importance u_ik: the share of their training
  points on which center k has the smallest loss of all, or σ if there is no such point;
- for each cluster, clients are drawn with probability ∝ u_ik·n_i, without repetition;
- a client that was drawn, for one cluster or for several, minimises once
  h_i(w) = f_i(w) + (λ/2)·Σ_k u_ik·‖w − c_k‖², inexactly, and the result is its new w_i;
- the center of a cluster is the plain mean of the local models drawn for it: n_i is in the draw already.

The local model is what a client predicts with. The K proximal terms have the gradient of one of strength
λ·Σ_k u_ik towards the point Σ_k u_ik·c_k / Σ_k u_ik; the server knows u_ik and sends that point alone.

In the authors' code a client goes on from its own last model (`start = "own"`), for ten epochs a round; with the
short trainings that all methods have here it then stays close to what it would learn alone. By default it
starts between the centers, where the proximal terms are least (0.66 instead of 0.53 on the digits, seeds 100 to
102). While a center is still random, everyone starts from the same initial parameters: random networks cannot
be mixed.

Departures: every cluster draws per_round/K clients, so that no round has more trainings than in other methods
(it has fewer if clusters draw the same client); a client whose importance is not known counts as equally
near to all centers; a client that never trained predicts with the minimiser of h_i for the centers as they are.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.client.training import Pull
from ipfl.core import Ask, ClientId, Record, Replies, Roster, Round, Seat, Setup, Vector, cluster_name, stream
from ipfl.core.replies import Count, ReplySchema, list_of
from ipfl.core.vectors import mean
from ipfl.methods.cluster_models import ClusterModels, ClusterModelsMethod, loss_table
from ipfl.methods.steps import average, expect_update, training_passes

Floats = NDArray[np.float64]


@plain_dataclass(frozen=True)
class SoftClusters:
    """Server state of FedSoft."""

    centers: ClusterModels
    importance: Mapping[ClientId, tuple[float, ...]]
    """u_ik of every client that answered."""
    sizes: Mapping[ClientId, int]
    """n_i of the same clients."""
    random: tuple[int, ...]
    """Clusters whose center nobody has trained yet."""

    def importance_of(self, client: ClientId) -> tuple[float, ...]:
        """u_ik; the same for all clusters if the client never answered."""
        k = len(self.centers.models)
        return self.importance.get(client, (1 / k,) * k)


@dataclass(frozen=True)
class FedSoft(ClusterModelsMethod[SoftClusters]):
    """Soft clustered federated learning (Ruan and Joe-Wong 2022)."""

    name: ClassVar[str] = "fedsoft"
    summary: ClassVar[str] = "local models between cluster centers (Ruan and Joe-Wong 2022)"

    clusters: Annotated[int, Field(ge=1)] = Field(2, description="K, number of centers")
    proximal: Annotated[float, Field(ge=0)] = Field(
        0.1, description="λ, strength of the pull towards the centers"
    )
    smoother: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-4, description="σ, importance of a center that is the best on no point of the client"
    )
    estimate_every: Annotated[int, Field(ge=1)] = Field(
        2, description="τ, rounds between estimates of the importance, for which all clients get all centers"
    )
    start: Literal["centers", "own"] = Field(
        "centers",
        description="where local training starts: between the centers, or at the client's last model",
    )

    def init(self, setup: Setup) -> SoftClusters:
        """Centers with different random parameters; equal ones could not be told apart."""
        return SoftClusters(ClusterModels.start(setup, self.clusters), {}, {}, tuple(range(self.clusters)))

    def cluster_models(self, state: SoftClusters) -> ClusterModels:
        """The centers."""
        return state.centers

    def round(
        self, state: SoftClusters, roster: Roster, round: int
    ) -> Generator[Ask, Replies, Round[SoftClusters]]:
        """Perhaps an estimate of the importance; then those drawn train, and centers are their means."""
        if round % self.estimate_every == 0:
            state = yield from self._estimate(state, roster)
        drawn = self._draw(state, roster, round)
        chosen = sorted(set().union(*drawn))
        size = state.centers.size
        to = {client: self._anchor(state, client) for client in chosen}
        replies = yield Ask("train", to, expect_update({"model": size}))
        # Equal weights: a client's number of samples decided how likely it was drawn.
        equal = {client: replace(reply, facts={"n": 1}) for client, reply in replies.items()}
        models = tuple(
            average({c: equal[c] for c in drawn[k] if c in equal}, "model", center, state.centers.rule)
            for k, center in enumerate(state.centers.models)
        )
        random = tuple(k for k in state.random if not replies.keys() & drawn[k])
        after = replace(state, centers=replace(state.centers, models=models), random=random)
        seats = (Seat(c, k, "random", c in replies) for k in range(self.clusters) for c in drawn[k])
        return Round(after, tuple(seats))

    def _estimate(self, state: SoftClusters, roster: Roster) -> Generator[Ask, Replies, SoftClusters]:
        """Everyone says how important the centers are to it; earlier answers of all others stay."""
        schema = ReplySchema(
            {"importance": list_of(Annotated[float, Interval(gt=0, le=1)], self.clusters), "n": Count}
        )
        replies = yield Ask("estimate", dict.fromkeys(roster.clients, Record(state.centers.named)), schema)
        importance = {client: tuple(reply.facts["importance"]) for client, reply in replies.items()}
        sizes = {client: reply.facts["n"] for client, reply in replies.items()}
        return replace(
            state,
            importance=dict(sorted({**state.importance, **importance}.items())),
            sizes=dict(sorted({**state.sizes, **sizes}.items())),
        )

    def _draw(self, state: SoftClusters, roster: Roster, round: int) -> list[list[ClientId]]:
        """Per cluster the clients drawn for it, ascending."""
        rng = stream(state.centers.seed, "select", round)
        typical = float(np.mean(list(state.sizes.values()))) if state.sizes else 1.0
        n = np.array([state.sizes.get(client, typical) for client in roster.clients])
        u = np.array([state.importance_of(client) for client in roster.clients])
        places, more = divmod(state.centers.per_round, self.clusters)
        drawn = []
        for k in range(self.clusters):
            # What K does not divide goes to another cluster each round.
            count = min(places + ((k - round) % self.clusters < more), len(n))
            share = u[:, k] * n
            rows = rng.choice(len(n), count, replace=False, p=share / share.sum())
            drawn.append(sorted(roster.clients[row] for row in rows))
        return drawn

    def _anchor(self, state: SoftClusters, client: ClientId) -> Record:
        """The point to which the K proximal terms pull a client, how strongly, and where it starts."""
        u = state.importance_of(client)
        facts = {"strength": self.proximal * sum(u), "random": bool(state.random)}
        return Record({"model": mean(state.centers.models, u)}, facts)

    def on_estimate(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Importance of every center on the training data."""
        u = importance(loss_table(ask.params, me, "train"), self.smoother)
        return Record({}, {"importance": u.tolist(), "n": len(me.data("train"))}), mine

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the client's own model, pulled towards the centers."""
        anchor = ask.params["model"]
        start = me.initial if ask.facts["random"] else anchor
        start = mine.params.get("own", me.initial) if self.start == "own" else start
        own = me.train(start, pull=Pull(anchor, float(ask.facts["strength"])))
        return Record({"model": own}, {"n": len(me.data("train"))}), Record({"own": own})

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """The client's own model; one that never trained starts between the centers and does so now."""
        if "own" in mine.params:
            return mine.params["own"]
        u = importance(loss_table(offer.params, me, "train"), self.smoother)
        anchor = mean([offer.params[cluster_name(k)] for k in range(self.clusters)], u.tolist())
        return me.train(anchor, pull=Pull(anchor, self.proximal * float(u.sum())))

    def preferences(self, state: SoftClusters) -> dict[ClientId, int]:
        """The most important cluster of every client that answered."""
        return {client: int(np.argmax(u)) for client, u in state.importance.items()}

    def personalize_cost(self, state: SoftClusters) -> int:
        """For clients that never trained: all centers are scored, then one training."""
        return self.clusters + training_passes(None)


def importance(losses: Floats, smoother: float) -> Floats:
    """u_ik = max(n_ik/n_i, σ) from (K, n_i) losses, n_ik being the points that center k fits best."""
    nearest = np.bincount(losses.argmin(axis=0), minlength=len(losses))
    return np.asarray(np.maximum(nearest / losses.shape[1], smoother))
