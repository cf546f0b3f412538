"""How a server makes one model of many replies: the mean, or a rule that tolerates some attackers."""

from __future__ import annotations

from collections.abc import Sequence

from ipfl.config.sections import AggregateConfig
from ipfl.core import Vector
from ipfl.core.vectors import mean


def aggregate(
    models: Sequence[Vector], weights: Sequence[float], before: Vector, rule: AggregateConfig
) -> Vector:
    """The new model; the model before, if there are fewer replies than the rule needs.

    Args:
        models: Trained models in ascending client id.
        weights: Their sample counts; used by all rules but `trimmed_mean`.
        before: The model that they were trained from.
        rule: Which rule, how far to clip, and how many replies it needs.
    """
    if len(models) < rule.fewest:
        return before
    if rule.rule == "mean" and rule.clip is None:
        return mean(models, weights)
    from ipfl.methods.shared.robust_rules import robust_model

    return robust_model(models, weights, before, rule)
