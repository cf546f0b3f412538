"""The spread over seeds, ranks, and paired differences with their bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from ipfl.core.streams import stream

RESAMPLES = 10_000
CONFIDENCE = 0.95
Values = Mapping[int, float]
"""Of one method, by seed."""


def sample_spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n − 1); None of fewer than two."""
    return stdev(values) if len(values) > 1 else None


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Bootstrap interval (percentiles) of the mean of paired differences; None of fewer than two.

    Seeds are drawn with replacement; the same differences always give the same interval.
    """
    if len(differences) < 2:
        return None
    given = np.asarray(differences, dtype=np.float64)
    draws = stream(0, "bootstrap", len(given)).integers(len(given), size=(RESAMPLES, len(given)))
    means = given[draws].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Standing:
    """The place of one method among others."""

    rank: int
    """1 is best; others that are equal do not count."""
    methods: int
    best_other: str
    difference: float
    """To the best of the others, on the seeds that both have; above 0: better."""
    interval: tuple[float, float] | None
    seeds: int

    @property
    def is_first_or_level(self) -> bool:
        """True if nobody is better beyond the interval."""
        return self.rank == 1 or (self.interval is not None and self.interval[1] >= 0)


def standing(method: str, values: Mapping[str, Values], *, is_higher_better: bool) -> Standing | None:
    """Compares one method with the others, seed by seed.

    Args:
        method: Which.
        values: Of all methods, by seed.
        is_higher_better: The direction.
    """
    sign = 1 if is_higher_better else -1
    means = {name: sign * fmean(of.values()) for name, of in values.items() if of}
    if method not in means or len(means) < 2:
        return None
    others = [name for name in means if name != method]
    best = max(others, key=lambda name: means[name])
    shared = [seed for seed in values[method] if seed in values[best]]
    if not shared:
        return None
    differences = [sign * (values[method][seed] - values[best][seed]) for seed in shared]
    return Standing(
        rank=1 + sum(means[name] > means[method] for name in others),
        methods=len(means),
        best_other=best,
        difference=fmean(differences),
        interval=interval(differences),
        seeds=len(shared),
    )
