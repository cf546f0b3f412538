"""How much of their steps clusters share: variances and shares by hand, and on data whose share is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.methods.ipfl_plus.scripted import HONEST, market, play, setup

from ipfl.methods.ipfl_plus.market_state import MarketState
from ipfl.methods.ipfl_plus.sharing import explained_by_chance, max_share, share_steps, variances
from ipfl.methods.ipfl_plus.updates import ClusterUpdates


def updates(*steps: Sequence[float], weights: Sequence[float] | None = None) -> ClusterUpdates:
    """Updates of one cluster, from a model of zeros."""
    models = tuple(np.asarray(step, np.float32) for step in steps)
    given = np.ones(len(steps)) if weights is None else np.asarray(weights, np.float64)
    return ClusterUpdates.of(np.zeros_like(models[0]), tuple(range(len(steps))), models, given)


def start(clusters: int = 2, size: int = 2) -> MarketState:
    """Before the first round; all models are 0."""
    return market(clusters=clusters).init(setup(size=size))


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
        new = {0: vector(2, 0), 1: vector(-2, 0)}
        shared = share_steps(start(), new, {0: 1.0, 1: 1.0})
        assert shared.share == pytest.approx(1 / 8)
        np.testing.assert_allclose(shared.models, [[1.75, 0], [-1.75, 0]])
        # What is remembered are the steps before they were shared: 0.8·2, and 0.8²·1 of chance.
        np.testing.assert_allclose(np.stack([*map(np.asarray, shared.directions)]), [[1.6, 0], [-1.6, 0]])
        np.testing.assert_allclose(shared.chance, [0.64, 0.64])

    def test_what_is_systematic_adds_up(self):
        # The same steps again: directions 0.8·(1.6 + 2) = 2.88, apart 2·2.88² = 16.5888; chance
        # 0.64·(0.64 + 1) = 1.0496. The share falls from 0.125 to 0.0633.
        state, new = start(), {0: vector(2, 0), 1: vector(-2, 0)}
        first = share_steps(state, new, {0: 1.0, 1: 1.0})
        state = replace(state, directions=first.directions, chance=first.chance)
        assert share_steps(state, new, {0: 1.0, 1: 1.0}).share == pytest.approx(1.0496 / 16.5888)

    def test_never_everything(self):
        # Otherwise models that are equal would stay so: 0.55 of a step is its cluster's own. Of two clusters
        # the share is 0.9 then, and each has 1 − 0.9 + 0.9/2 = 0.55; of four 0.6: 1 − 0.6 + 0.6/4 = 0.55.
        assert [max_share(clusters) for clusters in (2, 4)] == pytest.approx([0.9, 0.6])
        shared = share_steps(start(), {0: vector(2, 0), 1: vector(-2, 0)}, {0: 100.0, 1: 100.0})
        assert shared.share == pytest.approx(0.9)
        np.testing.assert_allclose(shared.models, [[0.2, 0], [-0.2, 0]], rtol=1e-6)

    def test_a_fixed_share(self):
        # Steps 0 and 4 have the mean 2. A share of 1/4 takes each a quarter of the way to it.
        shared = share_steps(start(size=1), {0: vector(0), 1: vector(4)}, {}, 0.25)
        np.testing.assert_allclose(shared.models, [[0.5], [3.5]])
        alone = share_steps(start(size=1), {0: vector(0), 1: vector(4)}, {}, 0.0)
        np.testing.assert_allclose(alone.models, [[0], [4]])

    def test_steps_are_shared_and_not_models(self):
        # Models 0 and 10 that both move by 1: nothing sets their steps apart, and they stay 10 apart.
        state = replace(start(size=1), models=(vector(0), vector(10)))
        shared = share_steps(state, {0: vector(1), 1: vector(11)}, {0: 1.0, 1: 1.0})
        np.testing.assert_allclose(shared.models, [[1], [11]])

    def test_a_cluster_without_updates_takes_part_in_what_is_shared(self):
        # The others' mean step is 3, and half of it is shared.
        new = {0: vector(2), 1: vector(4)}
        shared = share_steps(start(clusters=3, size=1), new, {}, 0.5)
        np.testing.assert_allclose(shared.models, [[2.5], [3.5], [1.5]])
        assert shared.directions[2] is None

    def test_clusters_that_are_not_in_use_stay(self):
        state = replace(start(clusters=3, size=1), alive=np.array([True, False, True]))
        shared = share_steps(state, {0: vector(0), 2: vector(4)}, {}, 0.5)
        np.testing.assert_allclose(shared.models, [[1], [0], [3]])

    @pytest.mark.parametrize("new", [{}, {1: vector(5, 5)}])
    def test_nothing_to_compare(self, new):
        shared = share_steps(start(), new, dict.fromkeys(new, 1.0))
        assert shared.share == 0
        assert shared.models[0].tolist() == [0, 0]

    def test_while_only_one_cluster_is_trained_the_others_follow_as_before(self):
        # Nothing to compare. Half was shared in the round before: the other one takes half of the step, and
        # cluster 1 all of it, 1/2·6 of its own and 1/2·6 in common.
        five_steps = ((vector(0), vector(0)),) * 5
        state = replace(start(size=1), shared=0.5, last_steps=(five_steps, five_steps))
        shared = share_steps(state, {1: vector(6)}, {1: 1.0})
        assert shared.share == 0.5
        np.testing.assert_allclose(shared.models, [[3], [6]])
        assert shared.directions[0] is None

    def test_they_do_not_follow_before_all_have_moved_in_five_rounds(self):
        # Else a few clients that all want one cluster keep the models one for ever.
        a_step = (vector(0), vector(0))
        state = replace(start(size=1), shared=0.5, last_steps=((a_step,) * 4, (a_step,) * 5))
        shared = share_steps(state, {1: vector(6)}, {1: 1.0})
        assert shared.share == 0
        np.testing.assert_allclose(shared.models, [[0], [6]])

    @pytest.mark.parametrize(("spread", "expected"), [(0.0, 0.9), (1.0, 1 / 6), (0.2, 1 / 1.2)])
    def test_normal_updates_with_a_known_answer(self, spread, expected):
        # Per parameter, cluster means vary by τ and updates by σ = 1 around them; with 5 updates each, chance
        # explains (1/5) / (1/5 + τ²) = 1/(1 + 5τ²) of the differences.
        rng, size = np.random.default_rng(0), 40_000
        centres = spread * rng.normal(size=(2, size))
        found = {k: updates(*(centres[k] + rng.normal(size=(5, size)))) for k in (0, 1)}
        new = {k: np.mean(one.models, axis=0) for k, one in found.items()}
        shared = share_steps(start(size=size), new, variances(found, clip=False))
        assert shared.share == pytest.approx(expected, rel=0.05)

    def test_directions_of_clusters_without_a_variance_do_not_count(self):
        directions = (vector(1), vector(-1), vector(1000))
        assert explained_by_chance(directions, np.array([0.1, 0.1, 9.0]), [0, 1]) == pytest.approx(0.05)


class TestRounds:
    def test_clients_are_asked_for_nothing_more(self):
        _, _, engine = play(market(share="auto"), 3, HONEST)
        facts = {key for ask in engine.asks for record in ask.to.values() for key in record.facts}
        _, _, alone = play(market(share=0.0), 3, HONEST)
        assert facts == {key for ask in alone.asks for record in ask.to.values() for key in record.facts}

    def test_the_report_says_how_much_was_shared(self):
        method = market(share="auto")
        state, _, _ = play(method, 3, HONEST)
        assert 0 < state.shared <= 0.9
        assert method.report(state)["shared"] == state.shared

    def test_a_cluster_whose_updates_were_all_left_out_has_no_step_of_its_own(self):
        # Its step is unknown, not 0: it does not halve what the others share, and keeps its direction.
        left_out = updates([9, 9], [9, 8]).only(np.zeros(2, bool))
        shared = market(share=0.5).move_models(start(), {0: updates([4, 0]), 1: left_out})
        np.testing.assert_allclose(shared.models, [[4, 0], [2, 0]])
        assert shared.directions[1] is None
