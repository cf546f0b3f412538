"""A market that expects cheating (`robust = true`): claims are limited, updates judged before they are used.

The paper trusts its clients: hits, sample counts and gradients count as they are sent, everyone's gradient
judges its own update too, and every update enters the mean. Beyond the paper, and only if asked for:

- ψ_ki = 1/n · median over judges j of cos(−g_j, Δ_i): how well the update Δ_i = W_i − ω agrees with the
  descent that others see, g_j being the gradient at the model ω *before* training on the `probe` of provider
  j. No client judges its own update. λ_i is the same for all n providers, because sample counts are claims.
  With gradients at the aggregated model, as the paper takes them, a client that returned the model unchanged
  earned as much as the others.
- Updates that are all but the same come from one client under many names: only the first counts, and votes.
- Updates much longer than the others do not count; the rest is clipped to the median length before the mean.
  Of sample counts, twice the median counts at most.
- A contribution that is small beside the median one is noise and counts 0. Clients with ψ ≤ 0 earn nothing;
  those whose remembered contribution is no more than that are left out of the mean.
- Of the accuracies that clients claim for the cluster models, extremes are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Vector
from ipfl.core.sections import AggregateConfig
from ipfl.methods.aggregation import UpdateMatrix, aggregate, clip_updates
from ipfl.methods.ipfl.arrays import Floats
from ipfl.methods.ipfl.profiler import blend

MIN_CONTRIBUTION = 0.1
"""A contribution below this share of the median one counts as none."""
COPY_COSINE = 0.95
"""Cosine from which on two updates are one."""
MAX_LENGTH = 3.0
"""An update longer than so many medians is not used."""
MAX_SAMPLES = 2.0
"""A sample count above so many medians is not believed."""


@dataclass(frozen=True)
class Verdict:
    """What the judges made of the updates of one cluster, in ascending client id."""

    psi: NDArray[np.float64]
    """ψ_ki; NaN where nobody could judge."""
    model: Vector
    """The aggregate of what was found good."""


def judge(
    before: Vector,
    models: Sequence[Vector],
    counts: Sequence[float],
    gradients: Sequence[Floats | None],
    remembered: Floats,
    decay: float,
    rule: AggregateConfig,
    server: Floats | None = None,
) -> Verdict:
    """Judges the updates of one cluster, and makes its model of those found good.

    Args:
        before: ω, the model that all were trained from.
        models: (n) W_i in ascending client id.
        counts: (n) n_i as claimed.
        gradients: (n) each provider's gradient at ω, None where it sent none.
        remembered: (n,) contributions that are remembered of the providers, NaN = unknown.
        decay: Weight of the past in them.
        rule: How updates become a model.
        server: The gradient on the server's own samples: the only judge, if given.
    """
    steps = np.stack([model.astype(np.float64) - before for model in models])
    weights = np.minimum(counts, MAX_SAMPLES * np.median(counts))
    first = find_originals(steps)
    votes = count_votes(steps, [server] * len(steps) if server is not None else gradients)
    original = first == np.arange(len(steps))
    if server is None:
        votes[:, ~original] = np.nan  # one vote for all names
        votes[first[:, None] == first[None, :]] = np.nan  # no client judges itself under any name
    fair = original & ~is_too_long(steps)
    psi = contributions_by_vote(votes, fair)
    good = fair & is_above_noise(blend(remembered, psi, decay))
    good = good if good.any() else fair
    if not good.any():
        return Verdict(psi, before)
    used = [before + step for step in clip_updates(steps[good], "median")]
    return Verdict(psi, aggregate(used, weights[good].tolist(), before, rule))


def find_originals(steps: UpdateMatrix) -> NDArray[np.int64]:
    """(n,) for every update the first one that it is all but the same as: itself, unless it is a copy."""
    length = np.linalg.norm(steps, axis=1)
    cosine = (steps @ steps.T) / np.maximum(np.outer(length, length), np.finfo(float).tiny)
    alike = cosine >= COPY_COSINE
    np.fill_diagonal(alike, True)
    return np.asarray(alike.argmax(axis=1), np.int64)


def count_votes(steps: UpdateMatrix, gradients: Sequence[Floats | None]) -> NDArray[np.float64]:
    """(n, judges) cos(−g_j, Δ_i), what judge j (column) thinks of update i (row).

    An update of length 0 gets 0; NaN is no vote.
    """
    votes = np.full((len(steps), len(gradients)), np.nan)
    lengths = np.maximum(np.linalg.norm(steps, axis=1), np.finfo(float).tiny)
    for j, gradient in enumerate(gradients):
        length = 0.0 if gradient is None else float(np.linalg.norm(gradient))
        if gradient is not None and length > 0:
            votes[:, j] = -(steps @ (gradient / length)) / lengths
    return votes


def is_too_long(steps: UpdateMatrix) -> NDArray[np.bool_]:
    """(n,) updates longer than `MAX_LENGTH` medians of those that are updates at all."""
    lengths = np.linalg.norm(steps, axis=1)
    typical = float(np.median(lengths[lengths > 0])) if lengths.any() else 0.0
    return np.asarray(lengths > MAX_LENGTH * typical)


def contributions_by_vote(votes: Floats, fair: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(n,) ψ: the median vote over n; 0 for copies, and for what is no more than noise."""
    has_votes = ~np.isnan(votes).all(axis=1)
    psi = np.full(len(votes), np.nan)
    psi[has_votes] = 1 / len(votes) * np.nanmedian(votes[has_votes], axis=1)
    psi[~fair] = 0.0
    return np.where(is_above_noise(psi), psi, np.minimum(psi, 0.0))


def is_above_noise(psi: Floats) -> NDArray[np.bool_]:
    """(n,) whether contributions are above 0 and `MIN_CONTRIBUTION` of their median; unknown ones are."""
    known = psi[~np.isnan(psi)]
    noise = MIN_CONTRIBUTION * max(0.0, float(np.median(known))) if len(known) else 0.0
    return ~(psi <= noise)


def limit_claims(accuracy: Floats, attacker_share: float) -> NDArray[np.float64]:
    """(n, K) claimed accuracies, the highest and lowest `attacker_share` of each cluster's cut to the next.

    A cluster that serves 1/K of the clients must not lose them for outliers, so half of that is the most
    that is cut off on either side.
    """
    cut = min(attacker_share, 0.5 / accuracy.shape[1])
    low, high = np.quantile(accuracy, [cut, 1 - cut], axis=0, method="nearest")
    return np.clip(accuracy, low, high)
