"""Guards: claims are limited and updates screened before use, because clients may cheat.

The paper trusts its clients: hits and sample counts count as they are sent, and every update enters the mean.
Here, each a guard of its own:

- `claims`: of the accuracies that clients claim for the cluster models, extremes are cut (`importance`).
- `copies`: updates that are all but the same come from one client under many names: the first counts.
- `lengths`: updates much longer than the others do not count. The others are those of all clusters: most of a
  single one's may come from attackers.
- `counts`: of sample counts, twice the median counts at most, of the cluster's or of all clusters'.
- `clip`: updates are shortened to their median length before the mean, and before they are compared.
- `noise`: updates of clients whose contributions are small beside the median one are left out of the mean.
  A client's record in the cluster counts, this round included: a single round says little.

Which of them does what was measured one by one: docs/adversaries.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.core.arrays import Floats, Ints
from ipfl.methods.ipfl_plus.contribution import Psi, remember
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.updates import ClusterUpdates, Updates

GuardName = Literal["claims", "copies", "lengths", "counts", "clip", "noise"]
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


@dataclasses.dataclass(frozen=True)
class GuardRecord:
    """What the guards remember of earlier rounds."""

    agreement: NDArray[np.float64]
    """(N, K) mean agreement of a client's updates with the others', NaN = unknown."""
    usual_length: float = math.nan
    """Smoothed median length of a round's updates, NaN = none yet."""

    @classmethod
    def start(cls, n: int, k: int) -> GuardRecord:
        """Nothing yet."""
        return cls(np.full((n, k), np.nan))


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Guards:
    """What the market does against clients that cheat."""

    rule: Literal["all", "paper"] = Field(
        default="all", description="all: every guard but those left out; paper: clients are trusted"
    )
    leave_out: tuple[GuardName, ...] = Field(
        default=(), description="guards that are not used: " + " | ".join(get_args(GuardName))
    )

    def uses(self, name: GuardName) -> bool:
        """Whether this guard is in use."""
        return self.rule == "all" and name not in self.leave_out

    def screen(self, updates: Updates, known: GuardRecord) -> tuple[Updates, GuardRecord]:
        """The same updates, with limited sample counts, and copies and extremes marked as not fair."""
        usual = median_length(found.products.lengths for found in updates.values())
        expected = float(np.fmin(usual, known.usual_length))
        counts = np.concatenate([np.zeros(0), *(one.weights for one in updates.values())])
        typical = float(np.median(counts)) if len(counts) else math.nan
        screened = {k: self.screen_cluster(one, expected, typical) for k, one in updates.items()}
        after = usual_length_after(known.usual_length, usual)
        return screened, dataclasses.replace(known, usual_length=after)

    def screen_cluster(
        self, updates: ClusterUpdates, expected_length: float = math.nan, typical_count: float = math.nan
    ) -> ClusterUpdates:
        """The updates of one cluster.

        Args:
            updates: All of them.
            expected_length: Median of this round's updates to all clusters, or the usual one if that is less;
                NaN = not known.
            typical_count: Median sample count of this round's updates to all clusters; NaN = not known.
        """
        fair, weights, products = updates.is_fair, updates.weights, updates.products
        if self.uses("copies"):
            fair = fair & (find_originals(products.among) == np.arange(len(weights)))
        if self.uses("lengths"):
            fair = fair & ~is_too_long(products.lengths, expected_length)
        if self.uses("counts"):
            weights = np.minimum(weights, MAX_SAMPLES * float(np.fmin(np.median(weights), typical_count)))
        return dataclasses.replace(updates, weights=weights, is_fair=fair)

    def drop_noise(
        self, updates: Updates, psi: Psi, known: GuardRecord, run: RunFacts, omega: Ints
    ) -> tuple[Updates, GuardRecord]:
        """Without updates of clients that contribute next to nothing, where contributions are known by now.

        Args:
            updates: Of every cluster.
            psi: Their agreement with the others.
            known: Earlier ones.
            run: Facts of the run. Noise for privacy looks like an update that nobody trained: the guard would
                drop them all.
            omega: (N, K) participation before the round.
        """
        if not psi or not self.uses("noise") or run.is_noisy:
            return updates, known
        agreement, kept = known.agreement, {}
        for k, found in updates.items():
            rows = run.rows(found.clients)
            agreement = remember(agreement, rows, k, psi[k], RECORD_DECAY, omega[rows, k] + 1)
            kept[k] = found.only(is_above_noise(agreement[rows, k]))
        return kept, dataclasses.replace(known, agreement=agreement)


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
