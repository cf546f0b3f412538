"""What is measured, by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.play.metrics import Evaluation, is_separated, mean_and_std, purity


class TestSpread:
    def test_mean_and_population_deviation(self):
        # Mean of 2, 4, 9 is 5; squared differences 9 + 1 + 16 = 26, over 3.
        figures = mean_and_std([2, 4, 9])
        assert figures == {"mean": 5, "std": pytest.approx((26 / 3) ** 0.5)}
        assert mean_and_std({7: 2.0, 1: 4.0, 5: 9.0}) == figures

    @pytest.mark.parametrize("nothing", [None, [], {}])
    def test_nothing(self, nothing):
        assert mean_and_std(nothing) is None


class TestPurity:
    def test_one_to_one(self):
        # Counts, cluster × distribution: [[2, 1], [2, 0]]. Both clusters are mostly distribution 0, but only
        # one may have it: 0→1 and 1→0 agree with 1 + 2 = 3 of 5; 0→0 and 1→1 with 2 + 0.
        preferred = {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}
        majority = {0: 0, 1: 0, 2: 1, 3: 0, 4: 0}
        assert purity(preferred, majority) == pytest.approx(3 / 5)

    def test_clusters_that_nobody_prefers_may_lie_between(self):
        assert purity({0: 0, 1: 4}, {0: 1, 1: 0}) == 1

    def test_clients_without_a_majority_do_not_count(self):
        assert purity({0: 0, 1: 0, 2: 1}, {0: 0, 1: None, 2: 1}) == 1

    @pytest.mark.parametrize(
        "preferred, majority", [({}, {0: 0}), ({0: 0}, {0: None}), ({3: 0}, {}), ({}, {})]
    )
    def test_nothing_to_measure(self, preferred, majority):
        assert purity(preferred, majority) is None

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
    def test_no_matching_is_better(self, pairs):
        """Against all one-to-one matchings of 4 clusters to 3 distributions (and one that is none)."""
        preferred = {i: cluster for i, (cluster, _) in enumerate(pairs)}
        majority = {i: kind for i, (_, kind) in enumerate(pairs)}
        best = max(
            sum(matching[cluster] == kind for cluster, kind in pairs)
            for matching in itertools.permutations([0, 1, 2, None])
        )
        assert purity(preferred, majority) == pytest.approx(best / len(pairs))


# PMA: 0.5 − 0.25 = 0.25 (gains), 0.5 − 0.5 = 0 (opts out: not better), 0.25 − 0.5 < 0 (opts out).
REFERENCE = {4: 0.25, 5: 0.5, 6: 0.5, 7: 1.0}


class TestEvaluation:
    MEASURED = Evaluation(
        round=3,
        personalized={4: 0.5, 5: 0.5, 6: 0.25},
        shared={4: 0.25, 5: 0.75},
        cluster_accuracy=[[0.5, 0.25]],
        purity=0.8,
        unseen={9: 0.125},
        assessed=("cluster_1", "cluster_2"),
    )

    def test_pma_of_each_client(self):
        assert self.MEASURED.pma(REFERENCE) == {4: 0.25, 5: 0, 6: -0.25}
        assert self.MEASURED.pma(None) is None

    def test_figures(self):
        assert self.MEASURED.figures(REFERENCE) == {
            "personalized_accuracy": {"mean": pytest.approx(1.25 / 3), "std": pytest.approx(2**0.5 / 12)},
            "global_accuracy": {"mean": 0.5, "std": 0.25},
            "cluster_accuracy": [[0.5, 0.25]],
            "assessed_models": ["cluster_1", "cluster_2"],
            "purity": 0.8,
            "last_step_passes": None,
            "separation": None,
            "unseen_accuracy": {"mean": 0.125, "std": 0},
            "metrics": {},
            "pma": {"mean": 0, "std": pytest.approx((0.125 / 3) ** 0.5)},
            "opt_outs": 2,
            "participation_rate": pytest.approx(1 / 3),
        }

    def test_without_a_reference_or_a_global_model(self):
        figures = Evaluation(0, {0: 1.0}, {}, None, None).figures()
        assert figures.pop("personalized_accuracy") == {"mean": 1, "std": 0}
        assert figures.pop("metrics") == {}
        assert set(figures.values()) == {None}

    def test_a_reference_of_other_clients_says_nothing(self):
        figures = self.MEASURED.figures({99: 0.5})
        assert figures["pma"] is figures["opt_outs"] is None
        assert figures["participation_rate"] is None


@pytest.mark.parametrize(
    ("gains", "separated"),
    [
        ([0.1, 0.31], False),  # mean 0.205, error 0.105: not more than twice that
        ([0.1, 0.29], True),  # mean 0.195, error 0.095
        ([0.2, 0.2, 0.2], True),
        ([0.0, 0.0], False),
        ([-0.2, -0.3, -0.2], False),
        ([0.4], True),
    ],
)
def test_separated_is_two_standard_errors_above_nothing(gains, separated):
    assert is_separated(gains) is separated
