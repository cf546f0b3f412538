"""How much of their steps clusters share: variances and shares by hand, and on data whose share is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.methods.ipfl_plus.scripted import setup

from ipfl.config.sections import AggregateConfig
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.sharing import Sharing, SharingRecord, explained_by_chance, max_share, variances
from ipfl.methods.ipfl_plus.updates import Clusters, ClusterUpdates


def updates(*steps: Sequence[float], weights: Sequence[float] | None = None) -> ClusterUpdates:
    """Updates of one cluster, from a model of zeros."""
    models = tuple(np.asarray(step, np.float32) for step in steps)
    given = np.ones(len(steps)) if weights is None else np.asarray(weights, np.float64)
    return ClusterUpdates.of(np.zeros_like(models[0]), tuple(range(len(steps))), models, given)


def share_steps(
    new: dict[int, np.ndarray],
    variance: dict[int, float],
    clusters: Clusters | None = None,
    record: SharingRecord | None = None,
    rule: str = "chance",
) -> tuple[Clusters, SharingRecord]:
    """What becomes of two models of 0, or of others."""
    before = Clusters.start(np.zeros_like(new[min(new)]), 2) if clusters is None else clusters
    earlier = SharingRecord.start(len(before.models)) if record is None else record
    return Sharing(rule=rule).share_steps(before, earlier, new, variance)


def vector(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


class TestVariance:
    def test_by_hand(self):
        # 1 and 3 have the variance 2 (divided by n − 1); that of the mean of two is half of it.
        assert variances({0: updates([1, 0], [3, 0])}, clip=False) == {0: pytest.approx(1.0)}

    def test_of_a_weighted_mean(self):
        # λ = (1/4, 3/4), the mean is 2.5: Σ λ(x − 2.5)² = 0.5625 + 0.1875 = 0.75, and Σ λ² = 0.625, so
        # σ² = 0.75/(1 − 0.625) = 2 as above, and the variance of the mean 2 · 0.625.
        found = variances({0: updates([1, 0], [3, 0], weights=[10, 30])}, clip=False)
        assert found == {0: pytest.approx(1.25)}

    def test_a_single_update_varies_as_those_of_other_clusters_do(self):
        found = variances({0: updates([1, 0], [3, 0]), 1: updates([7, 7])}, clip=False)
        assert found == {0: pytest.approx(1.0), 1: pytest.approx(2.0)}

    def test_unknown_if_no_cluster_has_two(self):
        none_left = updates([1, 0]).only(np.array([False]))
        assert variances({0: updates([1, 0]), 1: none_left}, clip=False) == {}

    def test_a_long_update_counts_no_more_than_it_does_in_the_mean(self):
        # Lengths 1 and 9 have the median 5: variance of 1 and 5 is 8, of their mean 4.
        assert variances({0: updates([1, 0], [9, 0])}, clip=True) == {0: pytest.approx(4.0)}


class TestShare:
    def test_by_hand(self):
        # Steps of +2 and −2 are 2² + 2² = 8 apart, and chance accounts for 1: s = 1/8. Each keeps 7/8 of 2.
        moved, record = share_steps({0: vector(2, 0), 1: vector(-2, 0)}, {0: 1.0, 1: 1.0})
        assert record.share == pytest.approx(1 / 8)
        np.testing.assert_allclose(moved.models, [[1.75, 0], [-1.75, 0]])
        # What is remembered are the steps before they were shared: 0.8·2, and 0.8²·1 of chance.
        np.testing.assert_allclose(np.stack([*map(np.asarray, moved.directions)]), [[1.6, 0], [-1.6, 0]])
        np.testing.assert_allclose(record.chance, [0.64, 0.64])

    def test_what_is_systematic_adds_up(self):
        # The same steps again: directions 0.8·(1.6 + 2) = 2.88, apart 2·2.88² = 16.5888; chance
        # 0.64·(0.64 + 1) = 1.0496. The share falls from 0.125 to 0.0633.
        new = {0: vector(2, 0), 1: vector(-2, 0)}
        moved, record = share_steps(new, {0: 1.0, 1: 1.0})
        again = replace(Clusters.start(vector(0, 0), 2), directions=moved.directions)
        _, record = share_steps(new, {0: 1.0, 1: 1.0}, again, record)
        assert record.share == pytest.approx(1.0496 / 16.5888)

    def test_never_everything(self):
        # Otherwise models that are equal would stay so: 0.55 of a step is its cluster's own. Of two clusters
        # the share is 0.9 then, and each has 1 − 0.9 + 0.9/2 = 0.55; of four 0.6: 1 − 0.6 + 0.6/4 = 0.55.
        assert [max_share(clusters) for clusters in (2, 4)] == pytest.approx([0.9, 0.6])
        moved, record = share_steps({0: vector(2, 0), 1: vector(-2, 0)}, {0: 100.0, 1: 100.0})
        assert record.share == pytest.approx(0.9)
        np.testing.assert_allclose(moved.models, [[0.2, 0], [-0.2, 0]], rtol=1e-6)

    def test_the_paper_shares_nothing(self):
        moved, record = share_steps({0: vector(0), 1: vector(4)}, {0: 1.0, 1: 1.0}, rule="paper")
        assert moved.models[1].tolist() == [4]
        assert record.share == 0

    def test_steps_are_shared_and_not_models(self):
        # Models 0 and 10 that both move by 1: nothing sets their steps apart, and they stay 10 apart.
        apart = replace(Clusters.start(vector(0), 2), models=(vector(0), vector(10)))
        moved, _ = share_steps({0: vector(1), 1: vector(11)}, {0: 1.0, 1: 1.0}, apart)
        np.testing.assert_allclose(moved.models, [[1], [11]])

    def test_a_cluster_without_updates_takes_part_in_what_is_shared(self):
        # Steps of 2 and 4 are 2·1² = 2 apart, and chance accounts for half of that: s = 1/2. The mean step is
        # 3, of which each gets half, and keeps half of its own: 2.5, 3.5, and 1.5 for the third.
        three = Clusters.start(vector(0), 3)
        moved, record = share_steps({0: vector(2), 1: vector(4)}, {0: 1.0, 1: 1.0}, three)
        assert record.share == pytest.approx(1 / 2)
        np.testing.assert_allclose(moved.models, [[2.5], [3.5], [1.5]])
        assert moved.directions[2] is None

    def test_nothing_to_compare(self):
        moved, record = share_steps({1: vector(5, 5)}, {1: 1.0})
        assert record.share == 0
        assert moved.models[0].tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("steps", "share", "models"), [((5, 5), 0.5, [[3], [6]]), ((4, 5), 0, [[0], [6]])]
    )
    def test_while_only_one_cluster_is_trained_the_others_follow_as_before(self, steps, share, models):
        # Half was shared in the round before: the other one takes half of the step, and cluster 1 all of it,
        # 1/2·6 of its own and 1/2·6 in common. But not before all have moved in five rounds: else a few
        # clients that all want one cluster keep the models one for ever.
        a_step = (vector(0), vector(0))
        before = replace(Clusters.start(vector(0), 2), last_steps=tuple((a_step,) * count for count in steps))
        record = replace(SharingRecord.start(2), share=0.5)
        moved, after = share_steps({1: vector(6)}, {1: 1.0}, before, record)
        assert after.share == share
        np.testing.assert_allclose(moved.models, models)
        assert moved.directions[0] is None

    @pytest.mark.parametrize(("spread", "expected"), [(0.0, 0.9), (1.0, 1 / 6), (0.2, 1 / 1.2)])
    def test_normal_updates_with_a_known_answer(self, spread, expected):
        # Per parameter, cluster means vary by τ and updates by σ = 1 around them; with 5 updates each, chance
        # explains (1/5) / (1/5 + τ²) = 1/(1 + 5τ²) of the differences.
        rng, size = np.random.default_rng(0), 40_000
        centres = spread * rng.normal(size=(2, size))
        found = {k: updates(*(centres[k] + rng.normal(size=(5, size)))) for k in (0, 1)}
        new = {k: np.mean(one.models, axis=0) for k, one in found.items()}
        _, record = share_steps(new, variances(found, clip=False))
        assert record.share == pytest.approx(expected, rel=0.05)

    def test_directions_of_clusters_without_a_variance_do_not_count(self):
        directions = (vector(1), vector(-1), vector(1000))
        assert explained_by_chance(directions, np.array([0.1, 0.1, 9.0]), [0, 1]) == pytest.approx(0.05)


class TestRounds:
    def test_a_cluster_whose_updates_were_all_left_out_has_no_step_of_its_own(self):
        # Its step is unknown, not 0: it does not halve the common step of the others, and has no direction.
        left_out = updates([9, 9], [9, 8]).only(np.zeros(2, bool))
        clusters, facts = Clusters.start(vector(0, 0), 2), RunFacts.of(setup(), holds_back=True)
        found = {0: updates([4, 0]), 1: left_out}
        moved, _ = Sharing().move(clusters, SharingRecord.start(2), found, facts, clip=False)
        np.testing.assert_allclose(moved.models, [[4, 0], [0, 0]])
        assert moved.directions[1] is None

    def test_a_cluster_with_fewer_updates_than_the_rule_wants_stays(self):
        facts = RunFacts.of(setup(), holds_back=True)
        facts = replace(facts, rule=AggregateConfig(min_providers=2))
        clusters = Clusters.start(vector(0, 0), 2)
        found = {0: updates([4, 0]), 1: updates([1, 1], [1, 3])}
        moved, _ = Sharing(rule="paper").move(clusters, SharingRecord.start(2), found, facts, clip=False)
        np.testing.assert_allclose(moved.models, [[0, 0], [1, 2]])
