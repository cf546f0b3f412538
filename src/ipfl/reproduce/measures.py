"""Measures of a run: each column of a table, from the numbers that are kept of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ipfl.reproduce.results_file import RunRecord

SEPARATED_PURITY = 0.95
"""From this purity on, clients have found their clusters."""


@dataclass(frozen=True)
class Measure:
    """A column of a table."""

    title: str
    of: Callable[[RunRecord, RunRecord | None], float | None]
    """From a run and the reference's with the same seed; None: it has no such value."""
    is_higher_better: bool = True
    digits: int = 1
    is_ranked: bool = True
    """False: methods are not compared by it."""


def _percent(values: list[float] | None) -> float | None:
    return 100 * float(np.mean(values)) if values else None


def mean_accuracy(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Mean accuracy of the clients' own models, in percent."""
    return _percent(run.personalized)


def client_spread(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Standard deviation of the accuracy over clients, n in the denominator: the paper's ±."""
    return 100 * float(np.std(run.personalized)) if run.personalized else None


def gains(run: RunRecord, reference: RunRecord | None) -> list[float]:
    """PMA of every client."""
    if reference is None or reference.key == run.key:
        return []
    before = reference.accuracy
    return [value - before[client] for client, value in run.accuracy.items() if client in before]


def pma(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Mean PMA, in points."""
    return _percent(gains(run, reference))


def opt_outs(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Share of the clients that gain nothing (PMA ≤ 0), in percent."""
    return _percent([float(gain <= 0) for gain in gains(run, reference)])


def matched_clusters(run: RunRecord) -> list[list[float]] | None:
    """[distribution][cluster], clusters in the order of the distributions that they fit best.

    Clusters carry no names: the order is taken in which they are best on their own distributions. None if
    there are fewer clusters than distributions.
    """
    from scipy.optimize import linear_sum_assignment  # scipy takes 0.2 s to import

    table = run.cluster_accuracy
    if not table or len(table) < 2 or len(table[0]) < len(table):
        return None
    _, best = linear_sum_assignment(table, maximize=True)
    return [[row[cluster] for cluster in best] for row in table]


def cluster_cell(distribution: int, cluster: int) -> Callable[[RunRecord, RunRecord | None], float | None]:
    """Accuracy of a (matched) cluster model on a distribution, in percent."""

    def of(run: RunRecord, reference: RunRecord | None) -> float | None:
        table = matched_clusters(run)
        is_there = table is not None and max(distribution, cluster) < len(table)
        return 100 * table[distribution][cluster] if table is not None and is_there else None

    return of


def best_distribution(cluster: int) -> Callable[[RunRecord, RunRecord | None], float | None]:
    """Accuracy of a (matched) cluster model on the distribution that it is best at."""

    def of(run: RunRecord, reference: RunRecord | None) -> float | None:
        table = matched_clusters(run)
        return None if table is None or cluster >= len(table) else 100 * max(row[cluster] for row in table)

    return of


def distinct(run: RunRecord, reference: RunRecord | None) -> float | None:
    """100 if every cluster model is best at another distribution, else 0."""
    table = matched_clusters(run)
    if table is None:
        return None
    best = {int(np.argmax([row[cluster] for row in table])) for cluster in range(len(table))}
    return 100.0 * (len(best) == len(table))


def rounds_to_reference(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Evaluated rounds, counted from 1, until the accuracy that the reference ends with; None: never."""
    if reference is None or not reference.curve:
        return None
    goal = reference.curve[-1][1]
    return next((float(point[0] + 1) for point in run.curve if point[1] >= goal), None)


def rounds_to_purity(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Rounds until clients have found their clusters, and stay there; after a drift counted from there."""
    start = run.drift_round or 0
    later = [(point[0], point[2]) for point in run.curve if point[0] >= start and point[2] is not None]
    if not later or (later[-1][1] or 0) < SEPARATED_PURITY:
        return None
    last_bad = max(
        (place for place, (_, value) in enumerate(later) if (value or 0) < SEPARATED_PURITY), default=-1
    )
    return float(later[last_bad + 1][0] + 1 - start)


def remaining_clients(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Share of the clients that have not left, in percent; None: nobody can leave the reference."""
    if reference is not None and reference.key == run.key:
        return None
    return 100 * (1 - run.left / len(run.clients)) if run.clients else None


def seconds_per_round(run: RunRecord, reference: RunRecord | None) -> float | None:
    """Time of a round as a multiple of the reference's."""
    if reference is None:
        return None
    return (run.seconds / run.rounds) / (reference.seconds / reference.rounds)


def _megabytes(count: int, run: RunRecord) -> float:
    return count / (run.rounds * len(run.clients)) / 1e6


MEASURES: dict[str, Measure] = {
    "accuracy": Measure("accuracy, %", mean_accuracy),
    "client_spread": Measure("± over clients", client_spread, is_ranked=False),
    "pma": Measure("PMA, points", pma),
    "opt_outs": Measure("opt-outs, %", opt_outs, is_higher_better=False),
    "unseen": Measure("unseen clients, %", lambda run, _: _percent(run.unseen)),
    "theta0_c0": Measure("θ₀ by c₀, %", cluster_cell(0, 0)),
    "theta0_c1": Measure("θ₀ by c₁, %", cluster_cell(0, 1), is_ranked=False),
    "theta1_c0": Measure("θ₁ by c₀, %", cluster_cell(1, 0), is_ranked=False),
    "theta1_c1": Measure("θ₁ by c₁, %", cluster_cell(1, 1)),
    "best_c0": Measure("c₀ at its best, %", best_distribution(0)),
    "best_c1": Measure("c₁ at its best, %", best_distribution(1)),
    "distinct": Measure("both distributions, % of seeds", distinct, digits=0, is_ranked=False),
    "purity": Measure("purity", lambda run, _: run.purity, digits=2, is_ranked=False),
    "rounds_to_reference": Measure(
        "rounds to the reference's end", rounds_to_reference, is_higher_better=False, is_ranked=False
    ),
    "rounds_to_purity": Measure(
        "rounds to purity 0.95", rounds_to_purity, is_higher_better=False, is_ranked=False
    ),
    "there": Measure("clients there, %", remaining_clients),
    "round_time": Measure(
        "time of a round, × reference", seconds_per_round, is_higher_better=False, digits=2, is_ranked=False
    ),
    "up": Measure("up, MB", lambda run, _: _megabytes(run.bytes_up, run), False, 2, False),
    "down": Measure("down, MB", lambda run, _: _megabytes(run.bytes_down, run), False, 2, False),
}
"""By the name that experiments use."""
