"""When a run has learned enough: no better on what clients know themselves for `patience` rounds.

Decided by the accuracy on each client's `goal`, never by test data; a function of the evaluations alone, so
that every engine, and a run that is resumed, stops after the same round.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipfl.play.metrics import Evaluation


def is_learned(evaluations: Mapping[int, Evaluation], patience: int | None) -> bool:
    """Whether the best evaluation is at least `patience` rounds older than the newest one.

    Args:
        evaluations: All so far, by round.
        patience: Rounds; None: a run never ends early.
    """
    scores = _goal_scores(evaluations)
    return bool(scores) and may_end(evaluations, patience, max(scores))


def may_end(evaluations: Mapping[int, Evaluation], patience: int | None, round: int) -> bool:
    """Whether the run ends after this round, if that is evaluated and is no better than those before.

    Args:
        evaluations: All before it, by round.
        patience: Rounds; None: a run never ends early.
        round: The round.
    """
    scores = _goal_scores(evaluations)
    if patience is None or not scores:
        return False
    best = max(scores, key=lambda round: (scores[round], -round))  # the first of equals
    return round - best >= patience


def _goal_scores(evaluations: Mapping[int, Evaluation]) -> dict[int, float]:
    """By round, where somebody has a goal."""
    return {round: score for round, one in evaluations.items() if (score := _goal_score(one)) is not None}


def _goal_score(evaluation: Evaluation) -> float | None:
    """Mean accuracy over clients on their goals; None if nobody has one."""
    goal = evaluation.goal
    return sum(goal[client] for client in sorted(goal)) / len(goal) if goal else None
