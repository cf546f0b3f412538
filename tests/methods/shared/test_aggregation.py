"""Aggregation by hand: each rule on updates of one or two parameters, and what no rule may do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.config.sections import AggregateConfig
from ipfl.core.vectors import mean
from ipfl.methods.shared.aggregation import aggregate
from ipfl.methods.shared.robust_rules import clipping_factors, geometric_median, trimmed_mean

RULES = ("mean", "trimmed_mean", "geometric_median", "multi_krum")
UPDATES = (1.0, 2.0, 3.0, 4.0, 100.0)


def models(*values: float) -> list[np.ndarray]:
    """One model of one parameter for each value."""
    return [np.array([value], np.float32) for value in values]


def combined(values: Sequence[float], rule: AggregateConfig, weights: list[float] | None = None) -> float:
    """What becomes of models of one parameter that were trained from 10."""
    before = np.array([10], np.float32)
    new = aggregate(models(*(10 + v for v in values)), weights or [1] * len(values), before, rule)
    assert new.dtype == np.float32
    return float(new[0]) - 10


class TestRulesByHand:
    """Four updates around 2.5 and one of 100, which rules that reckon with a fifth should mind little."""

    def test_mean(self):
        assert combined(UPDATES, AggregateConfig()) == pytest.approx(22)  # 110/5

    def test_trimmed_mean(self):
        # A fifth of five: without the 1 and the 100, (2 + 3 + 4)/3.
        assert combined(UPDATES, AggregateConfig(rule="trimmed_mean")) == pytest.approx(3)

    def test_geometric_median(self):
        # On a line it is the median.
        assert combined(UPDATES, AggregateConfig(rule="geometric_median")) == pytest.approx(3, abs=0.01)

    def test_multi_krum(self):
        # Distances squared to the 5 − 1 − 2 = 2 nearest: 1: 1 + 4, 2: 1 + 1, 3: 1 + 1, 4: 1 + 4,
        # 100: 96² + 97². One is left out: (1 + 2 + 3 + 4)/4.
        assert combined(UPDATES, AggregateConfig(rule="multi_krum")) == pytest.approx(2.5)

    def test_multi_krum_weighs_those_it_keeps(self):
        # (1·1 + 2·1 + 3·1 + 4·3)/6
        rule = AggregateConfig(rule="multi_krum")
        assert combined(UPDATES, rule, [1, 1, 1, 3, 9]) == pytest.approx(3)

    @pytest.mark.parametrize("rule", RULES)
    def test_one_reply_is_taken_as_it_is(self, rule):
        assert combined([7.0], AggregateConfig(rule=rule)) == pytest.approx(7)


class TestClipping:
    def test_to_a_length(self):
        # A length of 5 is halved, 1 stays, and what has no direction stays.
        assert clipping_factors(np.array([5.0, 1.0, 0.0]), 2.5).tolist() == [0.5, 1, 1]

    def test_to_the_median_length(self):
        # The median of 5, 1 and 2 is 2.
        assert clipping_factors(np.array([5.0, 1.0, 2.0]), "median").tolist() == [0.4, 1, 1]

    @pytest.mark.parametrize("rule", RULES)
    def test_comes_before_every_rule(self, rule):
        # Updates (3, 4) and (0, 1) of equal weight, clipped to 2.5: (1.5, 2) and (0, 1).
        models = [np.array([3.0, 4.0], np.float32), np.array([0.0, 1.0], np.float32)]
        clipped = [np.array([1.5, 2.0], np.float32), models[1]]
        zero, settings = np.zeros(2, np.float32), AggregateConfig(rule=rule)
        found = aggregate(models, [1.0, 1.0], zero, settings.model_copy(update={"clip": 2.5}))
        np.testing.assert_allclose(found, aggregate(clipped, [1.0, 1.0], zero, settings), rtol=1e-5)

    @pytest.mark.parametrize("limit", ["median", 3.0])
    def test_in_reused_memory_as_with_memory_of_its_own(self, limit):
        rng = np.random.default_rng(0)
        before, *trained = rng.normal(size=(6, 20_000)).astype(np.float32)
        weights = np.array([1.0, 5.0, 2.0, 2.0, 7.0])
        updates = [model.astype(np.float64) - before for model in trained]
        factors = clipping_factors(np.array([np.linalg.norm(update) for update in updates]), limit)
        shares = weights / weights.sum()
        step = sum(
            share * factor * update for share, factor, update in zip(shares, factors, updates, strict=True)
        )
        found = aggregate(trained, weights.tolist(), before, AggregateConfig(clip=limit))
        np.testing.assert_array_equal(found, np.asarray(before + step, np.float32))


class TestParts:
    def test_trimming_leaves_one_value_at_least(self):
        assert trimmed_mean(np.array([[1.0], [2.0], [9.0]]), attackers=5).tolist() == [2]

    def test_trimming_goes_by_coordinate(self):
        # Without the extremes of each column: 2 and 5.
        updates = np.array([[1.0, 5.0], [2.0, 0.0], [3.0, 9.0]])
        assert trimmed_mean(updates, attackers=1).tolist() == [2, 5]

    def test_geometric_median_of_a_triangle(self):
        # Of the equilateral triangle it is the centre; one corner that holds more than half keeps it.
        corners = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 3**0.5]])
        np.testing.assert_allclose(geometric_median(corners, np.full(3, 1 / 3)), [1, 3**-0.5], atol=1e-6)
        np.testing.assert_allclose(geometric_median(corners, np.array([0.6, 0.2, 0.2])), [0, 0], atol=1e-3)

    def test_geometric_median_leaves_an_update_that_the_mean_happens_to_meet(self):
        # The mean of −6, 0, 2, 2, 2 is 0, one of them; the median is 2.
        updates = np.array([[-6.0], [0.0], [2.0], [2.0], [2.0]])
        np.testing.assert_allclose(geometric_median(updates, np.full(5, 0.2)), [2], atol=1e-3)

    def test_geometric_median_of_equal_updates(self):
        assert geometric_median(np.full((3, 2), 4.0), np.full(3, 1 / 3)).tolist() == [4, 4]


updates = arrays(np.float64, st.tuples(st.integers(1, 9), st.just(3)), elements=st.floats(-8, 8, width=32))


@given(updates, st.sampled_from(RULES[:3]), st.sampled_from([None, "median", 1.5]), st.randoms())
def test_the_order_of_the_clients_does_not_matter(steps, rule, clip, random):
    setting, before = AggregateConfig(rule=rule, clip=clip), np.zeros(3, np.float32)
    order = random.sample(range(len(steps)), len(steps))
    one, other = (
        aggregate(list(rows.astype(np.float32)), [1.0] * len(rows), before, setting)
        for rows in (steps, steps[order])
    )
    np.testing.assert_allclose(one, other, atol=1e-3)


@given(updates.filter(lambda steps: len(steps) >= 5), st.floats(1e2, 1e6), st.sampled_from(RULES[1:]))
def test_one_outlier_cannot_drag_the_model_away(steps, far, rule):
    """However far it goes: none of the robust rules leaves a ball around the others of a few radii.

    Trimmed mean stays in the others' box, Krum's mean takes honest ones only, and the geometric median of a
    fifth against four fifths moves by at most 2·(4/5)/(4/5 − 1/5) = 8/3 radii from any honest point.
    """
    attacked = np.vstack([steps[1:], np.full(3, far)])
    radius = np.linalg.norm(steps[1:], axis=1).max()
    setting = AggregateConfig(rule=rule, attacker_share=1 / len(attacked) + 1e-6)
    new = aggregate(
        list(attacked.astype(np.float32)), [1.0] * len(attacked), np.zeros(3, np.float32), setting
    )
    assert np.linalg.norm(new) <= 4 * radius + 1e-3


@given(updates, st.lists(st.integers(1, 50), min_size=9, max_size=9))
def test_the_plain_rule_is_fedavg_s_mean_to_the_last_bit(steps, counts):
    trained = list(steps.astype(np.float32))
    weights = [float(count) for count in counts[: len(trained)]]
    new = aggregate(trained, weights, np.ones(3, np.float32), AggregateConfig())
    assert new.tobytes() == mean(trained, weights).tobytes()


@given(updates.filter(lambda steps: len(steps) > 1))
def test_no_point_near_the_geometric_median_is_closer_to_all(steps):
    shares = np.full(len(steps), 1 / len(steps))
    point = geometric_median(steps, shares)

    def total(z: np.ndarray) -> float:
        return float(np.linalg.norm(steps - z, axis=1).mean())

    for direction in np.vstack([np.eye(3), -np.eye(3), steps - point]):
        assert total(point) <= total(point + 0.1 * direction) + 1e-2
