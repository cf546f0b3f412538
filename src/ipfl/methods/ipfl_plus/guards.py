"""A market that expects cheating (`robust = true`): claims are limited, updates screened before use.

The paper trusts its clients: hits and sample counts count as they are sent, and every update enters the mean.
Beyond the paper, each a guard of its own:

- `claims`: of the accuracies that clients claim for the cluster models, extremes are cut.
- `copies`: updates that are all but the same come from one client under many names: the first counts.
- `lengths`: updates much longer than the others do not count. The others are those of all clusters: most of a
  single one's may come from attackers.
- `counts`: of sample counts, twice the median counts at most, of the cluster's or of all clusters'.
- `clip`: updates are shortened to their median length before the mean, and before they are compared.
- `noise`: updates of clients whose contributions are small beside the median one are left out of the mean.
  What counts is a client's record in the cluster, this round included: a single round says little.

Which of them does what was measured one by one: docs/adversaries.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ipfl.market.market_arrays import Floats

if TYPE_CHECKING:
    from ipfl.methods.ipfl_plus.ipfl_settings import GuardName
    from ipfl.methods.ipfl_plus.updates import ClusterUpdates

MIN_CONTRIBUTION = 0.1
"""A contribution below this share of the median one is noise."""
RECORD_DECAY = 0.9
"""Weight of the past in a client's record; its first ten contributions count alike."""
LENGTH_DECAY = 0.8
"""Weight of the past in the usual length."""
COPY_COSINE = 0.85
"""Cosine from which on two updates are one, if the median cosine of two updates is not near it."""
COPY_COSINE_OF_TWO = 0.95
"""The same where there are two updates in all, and nothing to compare them with."""
MAX_LENGTH = 3.0
"""An update longer than so many medians is not used."""
MAX_GROWTH = 2.0
"""A cluster's median length counts as so many of the median over all clusters at most, and that as so many of
the usual one: most of a cluster's updates may be attacks, and by chance most of a round's."""
MAX_SAMPLES = 2.0
"""A sample count above so many medians is not believed."""


def screen(
    updates: ClusterUpdates,
    guards: frozenset[GuardName],
    expected_length: float = math.nan,
    typical_count: float = math.nan,
) -> ClusterUpdates:
    """The same updates, with limited sample counts, and copies and extremes marked as not fair.

    Args:
        updates: Of one cluster.
        guards: What to look for.
        expected_length: Median of this round's updates to all clusters, or the usual one if that is less;
            NaN = not known.
        typical_count: Median sample count of this round's updates to all clusters; NaN = not known.
    """
    fair, weights, products = updates.is_fair, updates.weights, updates.products
    if "copies" in guards:
        fair = fair & (find_originals(products.among) == np.arange(len(weights)))
    if "lengths" in guards:
        fair = fair & ~is_too_long(products.lengths, expected_length)
    if "counts" in guards:
        weights = np.minimum(weights, MAX_SAMPLES * float(np.fmin(np.median(weights), typical_count)))
    return replace(updates, weights=weights, is_fair=fair)


def find_originals(products: Floats) -> NDArray[np.int64]:
    """(n,) for every update the first one that it is all but the same as: itself, unless it is a copy.

    Copies with noise of a quarter of their length have a cosine of 1/(1 + 1/16) = 0.94. So may all
    honest updates of a small model in the first rounds: copies are as near to 1 as to the median cosine.

    Args:
        products: (n, n) Δ_i·Δ_j.
    """
    length = np.sqrt(products.diagonal())
    cosine = products / np.maximum(np.outer(length, length), np.finfo(float).tiny)
    pairs = cosine[np.triu_indices(len(products), 1)]
    limit = max(COPY_COSINE, (1 + float(np.median(pairs))) / 2) if len(pairs) > 1 else COPY_COSINE_OF_TWO
    alike = cosine >= limit
    np.fill_diagonal(alike, True)
    return np.asarray(alike.argmax(axis=1), np.int64)


def is_too_long(lengths: Floats, expected_length: float = math.nan) -> NDArray[np.bool_]:
    """(n,) updates longer than `MAX_LENGTH` medians of those that are updates at all.

    Where the median is far from what is expected, that decides, unless all updates are far from it: then it
    is the model that changed.
    """
    median = median_length([lengths])
    limit = MAX_LENGTH * float(np.fmin(median, MAX_GROWTH * expected_length))
    if not ((lengths > 0) & (lengths <= limit)).any():
        limit = MAX_LENGTH * median
    return np.asarray(lengths > limit)


def median_length(lengths: Iterable[Floats]) -> float:
    """Median length of those that are updates at all, of all clusters together; NaN if there is none."""
    together = np.concatenate([np.zeros(0), *lengths])
    moved = together[together > 0]
    return float(np.median(moved)) if len(moved) else math.nan


def usual_length_after(usual: float, median: float) -> float:
    """The smoothed median length, after a round's; as it was if nothing moved.

    Half of a round may attack by chance. Such a round must not make the next one look usual.
    """
    if math.isnan(usual) or math.isnan(median):
        return float(np.fmin(usual, median))
    return LENGTH_DECAY * usual + (1 - LENGTH_DECAY) * min(median, MAX_GROWTH * usual)


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
