"""What a round's training brings: models go out to the seats, updates come back and become the new models.

Algorithm 1, lines 4, 7 and 8. In a robust market updates are screened first; see `robust`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.config.sections import AggregateConfig
from ipfl.core import Ask, ClientId, Record, Replies, Vector, cluster_name
from ipfl.core.replies import Count, ReplySchema
from ipfl.market.market_arrays import Bools
from ipfl.methods.ipfl_plus import guards as robust
from ipfl.methods.ipfl_plus.ipfl_settings import WITH_PROBE, GuardName
from ipfl.methods.ipfl_plus.market_state import MarketState
from ipfl.methods.ipfl_plus.products import UpdateProducts, Way
from ipfl.methods.shared.aggregation import aggregate, clipping_factors

UPDATE = ReplySchema(
    {"n": Count}, lambda sent, facts: {name: len(m) for name, m in sent.params.items()}, weight="n"
)
"""Every model that was sent, trained, and the number of samples."""


def ask_training(state: MarketState, seats: Bools, round: int) -> Ask:
    """Every client with a seat gets the model of each cluster it has a seat in.

    Args:
        state: The state before the round.
        seats: (N, K) who has a seat where.
        round: Its number. From `state.release_round` on clients may train on held-back points; never where
            they add noise to what they tell of these.
    """
    to, facts = {}, {}
    if round >= state.release_round and not state.is_noisy:
        facts = {WITH_PROBE: True}
    for row in np.flatnonzero(seats.any(axis=1)):
        models = {cluster_name(k): state.models[k] for k in np.flatnonzero(seats[row]).tolist()}
        to[int(state.ids[row])] = Record(models, facts)
    return Ask("train", to, UPDATE)


@dataclass(frozen=True)
class ClusterUpdates:
    """U_k: what the providers of one cluster sent, in ascending client id."""

    before: Vector
    """The model that all were trained from."""
    clients: tuple[ClientId, ...]
    models: tuple[Vector, ...]
    """W_i."""
    weights: NDArray[np.float64]
    """n_i, as far as they are believed."""
    is_fair: NDArray[np.bool_]
    """Which of them may count: all, but for copies and extremes in a robust market."""
    products: UpdateProducts
    """Of Δ_i = W_i − ω, among themselves and with what everybody knows."""

    @classmethod
    def of(
        cls,
        before: Vector,
        clients: tuple[ClientId, ...],
        models: tuple[Vector, ...],
        weights: NDArray[np.float64],
        known: Sequence[Way] = (),
        direction: Vector | None = None,
    ) -> ClusterUpdates:
        """Updates that all may count; `known` and `direction` are those of `UpdateProducts.of`."""
        products = UpdateProducts.of(models, before, known, direction)
        return cls(before, clients, models, weights, np.ones(len(clients), bool), products)

    def only(self, which: NDArray[np.bool_]) -> ClusterUpdates:
        """Those of them."""
        kept = np.flatnonzero(which).tolist()
        clients = tuple(self.clients[i] for i in kept)
        models = tuple(self.models[i] for i in kept)
        return ClusterUpdates(
            self.before,
            clients,
            models,
            self.weights[which],
            self.is_fair[which],
            self.products.only(which),
        )

    @property
    def clipping_factors(self) -> NDArray[np.float64]:
        """(n,) what makes each update no longer than their median."""
        return clipping_factors(self.products.lengths, "median")

    def shares(self, *, clip: bool) -> NDArray[np.float64]:
        """(n,) λ_i, what each update is multiplied by in their mean; `clip`: none longer than the median."""
        shares = self.weights / self.weights.sum()
        return np.asarray(shares * self.clipping_factors if clip and self.clients else shares)

    def mean(self, rule: AggregateConfig, *, clip: bool = False) -> Vector:
        """M_k = FedAvg(U_k); the model as it was if there is nothing to make the mean of.

        Args:
            rule: How updates become a model.
            clip: Whether no update may be longer than their median.
        """
        if not self.clients:
            return self.before
        rule = rule.model_copy(update={"clip": "median"}) if clip and rule.clip is None else rule
        return aggregate(self.models, self.weights.tolist(), self.before, rule)


Updates = Mapping[int, ClusterUpdates]
"""By cluster, of those with any update."""


def mean_samples(updates: Updates, otherwise: float) -> float:
    """Mean number of samples behind an update of this round; `otherwise` if there was none."""
    counts = [weight for found in updates.values() for weight in found.weights]
    return float(np.mean(counts)) if counts else otherwise


def median_update_length(updates: Updates) -> float:
    """Median length of a round's updates to all clusters; NaN if there is none."""
    return robust.median_length(found.products.lengths for found in updates.values())


def collect_updates(
    state: MarketState, seats: Bools, replies: Replies, guards: frozenset[GuardName]
) -> tuple[Updates, Bools]:
    """U_k of every cluster that got any, and the (N, K) seats that delivered.

    Args:
        state: The state before the round.
        seats: (N, K) who had a seat where.
        replies: What came back.
        guards: What to screen them for.
    """
    delivered = seats & np.isin(state.ids, list(replies))[:, None]
    found = {}
    for k in np.flatnonzero(delivered.any(axis=0)).tolist():
        clients = tuple(int(client) for client in state.ids[delivered[:, k]])
        models = tuple(replies[client].params[cluster_name(k)] for client in clients)
        weights = np.array([float(replies[client].facts["n"]) for client in clients])
        known = known_to_all(state, k)
        found[k] = ClusterUpdates.of(state.models[k], clients, models, weights, known, state.directions[k])
    expected = float(np.fmin(median_update_length(found), state.usual_length))
    counts = np.concatenate([np.zeros(0), *(one.weights for one in found.values())])
    typical = float(np.median(counts)) if len(counts) else math.nan
    return {k: robust.screen(one, guards, expected, typical) for k, one in found.items()}, delivered


def known_to_all(state: MarketState, cluster: int) -> list[Way]:
    """Directions that every buyer of the models knows: a cluster's last steps, and ways to the others."""
    here = state.models[cluster]
    return [*state.last_steps[cluster], *((here, state.models[k]) for k in state.clusters if k != cluster)]
