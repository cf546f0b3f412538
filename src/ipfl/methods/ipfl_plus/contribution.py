"""Contributions: how much each client's update improved the model of its cluster (Algorithm 3, the profiler).

The paper's rule is the gradient: ψ_ki = −g_kᵀ λ_i (W_i − W_M), the first-order drop of the loss by client i,
with g_k at the aggregated model on its providers' own points. It asks all of them once more, and
says little of the quality of their data. So here, by default, contributions are agreement: how far an update
points where the others' updates point, cos(M_k + Σ_{j≠i} λ_j Δ_j, Δ_i). Δ_j are the updates of the round, M_k
is the running direction of the cluster, M_k ← 0.8·(M_k + Σ_j λ_j Δ_j). No client is compared with its own
update of the round, and nothing is asked of anybody.

λ_j is what Δ_j is multiplied by in the cluster's step. Where long updates are clipped there, they are clipped
here as well: two clients that send their updates reversed and two and a half times as long would otherwise
be the majority beside three that send theirs, and honest ones would count as wrong.

M_k may be wrong: a round of attackers, or a model that overshot. If the median update of a round contradicts
it, it is left out of that round's comparison. Otherwise right updates would count as wrong from then on.

Every buyer of the models knows M_k as well, and could send the cluster's last steps instead of training, with
noise added so that it looks like an update of its own. So ψ_i is at most 0 where nothing of the update is
new: taken are all updates without their projection onto what everybody knows (the cluster's last steps, M_k,
and the differences to the other clusters' models). The rest of an honest update is correlated with the rest
of some other one, with either sign; noise is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.core import Vector
from ipfl.core.arrays import Floats, Ints
from ipfl.market.seating import Seating
from ipfl.methods.ipfl import estimate_shapley
from ipfl.methods.ipfl_plus.updates import UpdateProducts, Updates
from ipfl.methods.shared.cluster_training import MeanGradients

Psi = Mapping[int, NDArray[np.float64]]
"""ψ_ki of each cluster's providers, in ascending client id."""
Accuracies = Mapping[int, float]
"""Acc_kr of each cluster."""
DECAY = 0.9
"""Weight of the past in remembered contributions."""
LOST_PRIORITY = -2.0
"""Remembered contribution of a seat that delivered nothing, in standard scores."""
MIN_NEW = 1e-6
"""Share of an update's squared length below which nothing of it is new."""
MIN_STRUCTURE = 16.0
"""How many times the squared cosine of random directions what is new in two updates must have in common."""
MAX_STRUCTURE = 0.5
"""The same for very small models, as a squared cosine."""


@dataclasses.dataclass(frozen=True)
class ContributionRecord:
    """Contributions as the scheduler knows them."""

    psi: NDArray[np.float64]
    """(N, K) relative to the others of the round, averaged over a client's rounds; NaN = unknown."""

    @classmethod
    def start(cls, n: int, k: int) -> ContributionRecord:
        """Nothing is known of anybody."""
        return cls(np.full((n, k), np.nan))

    def after(self, psi: Psi, seats: Seating, omega: Ints) -> ContributionRecord:
        """With the contributions of a round; a seat that delivered nothing counts against its client.

        Args:
            psi: ψ_ki of the providers.
            seats: The seats of the round.
            omega: (N, K) participation, this round included.
        """
        after, delivered = self.psi, seats.delivered
        missing = seats.all & ~delivered & ~seats.excused
        for k, values in psi.items():
            providers = np.flatnonzero(delivered[:, k])
            after = remember(after, providers, k, standard_scores(values), DECAY, omega[providers, k])
        for k in range(missing.shape[1]):
            absent = np.flatnonzero(missing[:, k])
            lost = np.full(len(absent), LOST_PRIORITY)
            after = remember(after, absent, k, lost, DECAY, omega[absent, k] + 1)
        return ContributionRecord(after)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Contributions:
    """How contributions are measured."""

    rule: Literal["agreement", "paper"] = Field(
        default="agreement",
        description="agreement: with the direction of the others' updates; "
        "paper: by the gradient of the loss on the providers' own points",
    )

    def compare(self, updates: Updates, *, clip: bool, is_noisy: bool) -> Psi:
        """ψ_ki by agreement, from the updates alone; nothing if they are measured by the gradient.

        Args:
            updates: Those that may count.
            clip: Whether none counts for more than the median length.
            is_noisy: Whether honest clients put noise on their updates.
        """
        if self.rule == "paper":
            return {}
        return {
            k: contributions_by_agreement(found.products, found.shares(clip=clip), is_noisy=is_noisy)
            for k, found in updates.items()
        }

    def estimate(
        self, models: Sequence[Vector], updates: Updates, gradients: Mapping[int, MeanGradients]
    ) -> Psi:
        """ψ_ki by the gradients at the aggregated models W_M."""
        return {
            k: estimate_shapley(gradients.get(k, []), found.models, found.weights.tolist(), models[k])
            for k, found in updates.items()
        }


def agreement(products: UpdateProducts, share: Floats, *, with_direction: bool) -> NDArray[np.float64]:
    """(n,) cos(M_k + Σ_{j≠i} λ_j Δ_j, Δ_i) of n updates.

    Args:
        products: Of the updates Δ_i, and with M_k.
        share: (n,) λ_j, what each is multiplied by in the step of the cluster.
        with_direction: Whether M_k counts; else nothing is in its place.

    Returns:
        0 for an update of length 0; NaN where there is nothing to compare it with.
    """
    square = products.among.diagonal()
    along = products.among @ share  # Δ_i·total, with total = M_k + Σ_j λ_j Δ_j
    total = float(share @ along)  # |total|²
    if with_direction:
        total += 2 * float(share @ products.along[:, -1]) + float(products.known[-1, -1])
        along = along + products.along[:, -1]
    # |total − λ_i Δ_i|² and (total − λ_i Δ_i)·Δ_i.
    rest = np.maximum(total - 2 * share * along + share**2 * square, 0.0)
    known = rest > 1e-12 * max(total, float((share**2 * square).max(initial=0.0)))
    length = np.sqrt(np.where(known, rest, 1.0) * np.where(square > 0, square, 1.0))
    cosine = np.where(square > 0, (along - share * square) / length, 0.0)
    return np.where(known | (square == 0), cosine, np.nan)


def is_new(products: UpdateProducts) -> NDArray[np.bool_]:
    """(n,) whether what an update holds beyond what is known is more than noise; true for a single one.

    The squared cosine of two random directions is 1/P on average. That of an update with one of the others,
    both without their known part, has to be `MIN_STRUCTURE` times that.
    """
    beyond = products.beyond_known
    left = beyond.diagonal()
    has_rest = left > MIN_NEW * products.among.diagonal()
    length = np.sqrt(np.where(has_rest, left, 1.0))
    square = (beyond / np.outer(length, length)) ** 2 * np.outer(has_rest, has_rest)
    np.fill_diagonal(square, 0.0)
    shared = square.max(axis=1) if has_rest.sum() > 1 else np.full(len(left), np.inf)
    return np.asarray(has_rest & (shared > min(MIN_STRUCTURE / products.size, MAX_STRUCTURE)))


def contributions_by_agreement(
    products: UpdateProducts, share: Floats, *, is_noisy: bool = False
) -> NDArray[np.float64]:
    """(n,) ψ of one cluster's updates; NaN where there is nothing to compare an update with.

    Args:
        products: Of the updates Δ_i, and with what everybody knows.
        share: (n,) λ_j, what each is multiplied by in the step of the cluster.
        is_noisy: Whether honest clients put noise on their updates: then nothing can be said of what is new.
    """
    psi = agreement(products, share, with_direction=products.has_direction)
    if products.has_direction and np.isfinite(psi).any() and np.nanmedian(psi) < 0:
        psi = agreement(products, share, with_direction=False)
    if is_noisy:
        return psi
    return np.where(is_new(products), psi, np.minimum(psi, 0.0))


def remember(
    memory: Floats, clients: Ints, cluster: int, psi: Floats, decay: float, count: Ints
) -> NDArray[np.float64]:
    """Contributions as remembered per (client, cluster): an average over a client's rounds.

    Args:
        memory: (N, K), NaN = unknown.
        clients: (n,) who contributed.
        cluster: To which cluster.
        psi: (n,) ψ_ki; NaN leaves what was remembered.
        decay: Weight of the past.
        count: (n,) values so far, this one included: the first 1/(1 − decay) of them count alike.

    Returns:
        The new memory: decay·old + (1 − decay)·ψ, or ψ where nothing was known.
    """
    after = np.array(memory, np.float64)
    old = after[clients, cluster]
    past = np.minimum(decay, 1 - 1 / np.maximum(count, 1))
    new = np.where(np.isnan(old), psi, past * old + (1 - past) * psi)
    after[clients, cluster] = np.where(np.isnan(psi), old, new)
    return after


def standard_scores(psi: Floats) -> NDArray[np.float64]:
    """(n,) contributions of a round relative to each other: (ψ − mean)/deviation; 0 where they are alike.

    Unknown ones stay unknown, and so does a single one: there is nothing to compare it with.
    """
    known = psi[np.isfinite(psi)]
    if len(known) < 2:
        return np.full(len(psi), np.nan)
    deviation = float(known.std())
    spread = deviation if deviation > 1e-12 * max(abs(float(known.mean())), 1e-300) else np.inf
    return np.asarray((psi - known.mean()) / spread)
