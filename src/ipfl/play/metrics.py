"""What is measured: accuracy (global, cluster, personalized: never mixed up), purity, PMA, opt-outs.

PMA_i = accuracy of i's personalized model − ρ_i, with ρ_i the reference method's accuracy on the same
test data (Eq. PMA). An opt-out is PMA_i ≤ 0: Eq. optouts is printed with H inverted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipfl.core import ClientId


def mean_and_std(values: Sequence[float] | Mapping[ClientId, float] | None) -> dict[str, float] | None:
    """Mean and (population) standard deviation over clients; None where there is nothing to measure."""
    if not values:
        return None
    numbers = np.asarray(list(values.values()) if isinstance(values, Mapping) else values, dtype=np.float64)
    return {"mean": float(numbers.mean()), "std": float(numbers.std())}


def _known(values: Mapping[ClientId, float | None]) -> dict[ClientId, float]:
    """Those that have a value."""
    return {client: value for client, value in values.items() if value is not None}


def purity(preferred: Mapping[ClientId, int], majority: Mapping[ClientId, int | None]) -> float | None:
    """Share of clients that prefer the cluster of their majority distribution, under the best matching.

    Clusters carry no names, so the one-to-one matching of clusters and distributions that agrees with
    most clients is taken (Hungarian method). None without clusters or without distributions.
    """
    from scipy.optimize import linear_sum_assignment  # scipy takes 0.2 s to import

    pairs = [(cluster, majority.get(client)) for client, cluster in preferred.items()]
    known = [(cluster, kind) for cluster, kind in pairs if kind is not None]
    if not known:
        return None
    counts = np.zeros((max(c for c, _ in known) + 1, max(d for _, d in known) + 1), dtype=np.int64)
    for cluster, kind in known:
        counts[cluster, kind] += 1
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / len(known))


def is_separated(gains: Sequence[float]) -> bool:
    """Whether clients gain by their preferred clusters: mean more than two standard errors above 0."""
    error = np.std(gains, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(np.mean(gains) > 2 * error)


def assessed_models(figures: Mapping[str, Any]) -> list[str]:
    """Names of the models that the columns of an evaluation's `cluster_accuracy` belong to."""
    return [str(name) for name in figures.get("assessed_models") or ()]


@dataclass(frozen=True)
class Evaluation:
    """All that one evaluation measured, per client where it is per client."""

    round: int
    personalized: Mapping[ClientId, float]
    shared: Mapping[ClientId, float]
    """Accuracy of the global model on each client's test data; empty for methods without one."""
    cluster_accuracy: list[list[float]] | None
    """[distribution][model]; the models are named in `assessed`."""
    purity: float | None
    unseen: Mapping[ClientId, float] = field(default_factory=dict)
    goal: Mapping[ClientId, float] = field(default_factory=dict)
    """Accuracy of the same models on each client's `goal`: what clients know, and may decide by."""
    metrics: Mapping[str, Mapping[ClientId, float | None]] = field(default_factory=dict)
    """Of the same models on test data, by name (`evaluate.metrics`); None where one is not defined."""
    separation: Mapping[ClientId, float] = field(default_factory=dict)
    """Accuracy of the preferred cluster's model on the client's test data, minus the mean of the other
    clusters' models; after the last round, for methods whose clients prefer clusters."""
    assessed: tuple[str, ...] = ()
    """Names of the server models that the columns of `cluster_accuracy` belong to. A cluster keeps its number
    when others are merged, so the third column is not always cluster 2."""
    last_step_passes: float | None = None
    """Forward passes over its points that the last step took a client, on average; None: there was none, or
    nobody said so."""
    last_step_seconds: float | None = field(default=None, compare=False)
    """The same by the clock; not kept in `metrics.jsonl`, which is the same for every run."""

    def line(self) -> dict[str, Any]:
        """What `metrics.jsonl` keeps per client, enough to make this evaluation again."""
        separation = [self.separation.get(client) for client in self.personalized]
        return {
            "clients": list(self.personalized),
            "personalized": list(self.personalized.values()),
            "global": list(self.shared.values()),
            "goal": [self.goal.get(client) for client in self.personalized],
            "unseen_clients": list(self.unseen),
            "unseen": list(self.unseen.values()),
            "metrics_per_client": {name: list(values.values()) for name, values in self.metrics.items()},
            **({"separation_per_client": separation} if self.separation else {}),
        }

    @classmethod
    def from_line(cls, round: int, line: Mapping[str, Any]) -> Evaluation:
        """The evaluation that a line of `metrics.jsonl` tells of."""
        return cls(
            round=round,
            personalized=dict(zip(line["clients"], line["personalized"], strict=True)),
            shared=dict(zip(line["clients"], line["global"], strict=bool(line["global"]))),
            cluster_accuracy=line["cluster_accuracy"],
            purity=line["purity"],
            unseen=dict(zip(line["unseen_clients"], line["unseen"], strict=True)),
            goal={
                c: value for c, value in zip(line["clients"], line["goal"], strict=True) if value is not None
            },
            metrics={
                name: dict(zip(line["clients"], values, strict=True))
                for name, values in line.get("metrics_per_client", {}).items()
            },
            separation=_known(
                dict(zip(line["clients"], line.get("separation_per_client", ()), strict=False))
            ),
            assessed=tuple(assessed_models(line)),
            last_step_passes=line.get("last_step_passes"),
        )

    def pma(self, reference: Mapping[ClientId, float] | None) -> dict[ClientId, float] | None:
        """PMA of each client against the reference accuracies ρ_i; None without a reference."""
        if reference is None:
            return None
        return {i: accuracy - reference[i] for i, accuracy in self.personalized.items() if i in reference}

    def figures(self, reference: Mapping[ClientId, float] | None = None) -> dict[str, Any]:
        """The figures of this evaluation under the names that `summary.json` uses; absent ones are None."""
        pma = self.pma(reference)
        opt_outs = sum(value <= 0 for value in pma.values()) if pma else None
        return {
            "personalized_accuracy": mean_and_std(self.personalized),
            "global_accuracy": mean_and_std(self.shared),
            "cluster_accuracy": self.cluster_accuracy,
            "assessed_models": list(self.assessed) or None,
            "purity": self.purity,
            "last_step_passes": self.last_step_passes,
            "separation": mean_and_std(self.separation),
            "unseen_accuracy": mean_and_std(self.unseen),
            "metrics": {name: mean_and_std(_known(values)) for name, values in self.metrics.items()},
            "pma": mean_and_std(pma),
            "opt_outs": opt_outs,
            "participation_rate": None if opt_outs is None or not pma else 1 - opt_outs / len(pma),
        }


def is_learned(evaluations: Mapping[int, Evaluation], patience: int | None) -> bool:
    """Whether the best evaluation is at least `patience` rounds older than the newest one.

    Args:
        evaluations: All so far, by round.
        patience: Rounds; None: a run never ends early.
    """
    scores = _goal_scores(evaluations)
    if patience is None or not scores:
        return False
    best = max(scores, key=lambda round: (scores[round], -round))  # the first of equals
    return max(scores) - best >= patience


def _goal_scores(evaluations: Mapping[int, Evaluation]) -> dict[int, float]:
    """By round, where somebody has a goal."""
    return {round: score for round, one in evaluations.items() if (score := _goal_score(one)) is not None}


def _goal_score(evaluation: Evaluation) -> float | None:
    """Mean accuracy over clients on their goals; None if nobody has one."""
    goal = evaluation.goal
    return sum(goal[client] for client in sorted(goal)) / len(goal) if goal else None
