"""Measures and statistics against numbers worked out by hand."""

import json

import pytest
from tests.reproduce.small_experiment import record

from ipfl.reproduce.measures import MEASURES, matched_clusters
from ipfl.reproduce.results_file import compact_json
from ipfl.study.statistics import interval, sample_spread, standing


def value(name, run, reference=None):
    return MEASURES[name].of(run, reference)


def test_pma_and_opt_outs_are_client_by_client():
    reference = record("r", clients=[1, 0], personalized=[0.6, 0.5])
    # Client 0: 0.5 − 0.5 = 0, which is an opt-out; client 1: 0.9 − 0.6.
    assert value("pma", record(), reference) == pytest.approx(15)
    assert value("opt_outs", record(), reference) == pytest.approx(50)
    assert value("pma", reference, reference) is None
    assert value("accuracy", record()) == pytest.approx(70)
    assert value("client_spread", record()) == pytest.approx(20)


def test_clusters_are_matched_to_distributions():
    # Cluster 1 is good at distribution 0, and cluster 0 at distribution 1: their order is turned round.
    run = record(cluster_accuracy=[[0.2, 0.8], [0.7, 0.3]])
    assert matched_clusters(run) == [[0.8, 0.2], [0.3, 0.7]]
    assert value("theta0_c0", run) == pytest.approx(80)
    assert value("theta0_c1", run) == pytest.approx(20)
    assert value("theta1_c1", run) == pytest.approx(70)
    assert value("distinct", run) == 100
    # Both are best at distribution 0.
    collapsed = record(cluster_accuracy=[[0.8, 0.6], [0.5, 0.4]])
    assert value("distinct", collapsed) == 0
    assert value("best_c1", collapsed) == pytest.approx(60)
    assert value("distinct", record(cluster_accuracy=[[0.8], [0.5]])) is None, "one model for both"


def test_rounds_until_something():
    reference = record("r", curve=[(0, 0.2, None, 2), (3, 0.6, None, 2)])
    run = record(curve=[(0, 0.3, 1.0, 2), (1, 0.6, 0.5, 2), (2, 0.7, 0.96, 2), (3, 0.8, 1.0, 2)])
    assert value("rounds_to_reference", run, reference) == 2
    assert value("rounds_to_purity", run) == 3
    # After a drift in round 1, the second round from there on is the first that is pure for good.
    assert value("rounds_to_purity", run.model_copy(update={"drift_round": 1})) == 2
    assert value("rounds_to_purity", record(curve=[(0, 0.3, 1.0, 2), (1, 0.6, 0.5, 2)])) is None


def test_costs_are_per_round_and_client():
    assert value("up", record()) == pytest.approx(2.0)  # 16 MB / (4 rounds × 2 clients)
    assert value("round_time", record(), record("r", rounds=8)) == pytest.approx(2.0)
    assert value("there", record(left=1)) == pytest.approx(50)
    assert value("there", record(), record()) is None, "nobody can leave the reference"


def test_spread_is_that_of_a_sample():
    assert sample_spread([1.0, 3.0]) == pytest.approx(2**0.5)  # ((1 + 1) / (2 − 1))^½
    assert sample_spread([1.0]) is None


def test_interval_of_equal_differences_is_a_point():
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert interval([2.0]) is None
    low, high = interval([0.0, 1.0])
    # Of two seeds, both draws are the first (or the second) with probability ¼ > 2.5 %.
    assert (low, high) == (0.0, 1.0)
    assert interval([0.0, 1.0, 5.0]) == interval([0.0, 1.0, 5.0])


def test_standing_is_paired():
    values = {"a": {0: 5.0, 1: 7.0}, "b": {0: 4.0, 1: 6.0, 2: 5.0}, "c": {0: 1.0}}
    one = standing("a", values, is_higher_better=True)
    assert (one.rank, one.methods, one.best_other, one.seeds) == (1, 3, "b", 2)
    assert one.difference == pytest.approx(1.0)  # of seeds 0 and 1; the third of b has no partner
    assert one.interval == (1.0, 1.0)
    assert one.is_first_or_level
    worst = standing("a", values, is_higher_better=False)
    assert (worst.rank, worst.best_other) == (3, "c")
    assert worst.difference == pytest.approx(-4.0)
    assert not worst.is_first_or_level
    assert standing("a", {"a": {0: 1.0}}, is_higher_better=True) is None


def test_lists_are_on_one_line():
    content = {"a": [[1, 2], [3, 4]], "b": ["[\n 1 ]"], "c": [{"d": 1}, {}], "e": {}}
    text = compact_json(content)
    assert json.loads(text) == content
    assert text.splitlines() == [
        "{",
        ' "a": [[1, 2], [3, 4]],',
        ' "b": ["[\\n 1 ]"],',
        ' "c": [',
        "  {",
        '   "d": 1',
        "  },",
        "  {}",
        " ],",
        ' "e": {}',
        "}",
    ]
