"""Mixes of cluster models by hand, and what counts as evidence for another one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.errors import InputError
from ipfl.methods.ipfl_plus.mixing import (
    TEMPERATURES,
    calibrated_hits,
    candidate_weights,
    choose_on_evidence,
    evidence,
    mixing_weights,
    optimism,
)


def test_mixing_of_the_paper_and_of_the_best() -> None:
    weights = np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(mixing_weights(weights, "paper"), weights)
    assert mixing_weights(weights, "best").tolist() == [0, 1, 0]


def test_tuned_finds_the_sharpness_that_scores_best() -> None:
    # υ = (1/3, 2/3): squared and normalised (1/5, 4/5). A score that peaks there must pick s = 2.
    picked = mixing_weights(np.array([1 / 3, 2 / 3]), "tuned", lambda mix: -abs(mix[1] - 0.8))
    np.testing.assert_allclose(picked, [0.2, 0.8])
    # A score for equal shares picks s = 0.
    np.testing.assert_allclose(
        mixing_weights(np.array([0.1, 0.9]), "tuned", lambda mix: -abs(mix[0] - 0.5)), [0.5, 0.5]
    )


def test_tuned_prefers_the_sharper_mix_when_scores_tie_and_ignores_nan() -> None:
    weights = np.array([0.3, 0.5, 0.2])
    assert mixing_weights(weights, "tuned", lambda mix: 1.0).tolist() == [0, 1, 0]
    picked = mixing_weights(weights, "tuned", lambda mix: float("nan") if mix.max() == 1 else 0.0)
    np.testing.assert_allclose(picked, weights**8 / (weights**8).sum())


@given(arrays(np.float64, 4, elements=st.floats(0, 1)), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_tuned_is_never_worse_than_the_best_single_cluster(weights: np.ndarray, worth: list[float]) -> None:
    def score(mix: np.ndarray) -> float:  # anything that is not linear: mixing may help or hurt
        return float(np.sin(9 * mix @ worth) + mix.max())

    picked = mixing_weights(weights, "tuned", score)
    assert picked.sum() == pytest.approx(1)
    assert score(picked) >= max(score(single) for single in np.eye(4))


def test_unknown_mix_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="did you mean 'tuned'"):
        mixing_weights(np.ones(2), "tune", lambda mix: 0.0)  # type: ignore[arg-type]


def test_candidates_are_the_mix_at_hand_and_then_sharper_and_flatter_ones() -> None:
    # υ = (1/3, 2/3): (1, 2^s)/(1 + 2^s), s = 4. Singles by υ; then s = 8, 2, 1, 0.
    weights = candidate_weights(np.array([1 / 3, 2 / 3]))
    sharpened = [[1 / (1 + 2**s), 2**s / (1 + 2**s)] for s in (4, 8, 2, 1, 0)]
    np.testing.assert_allclose(weights, [sharpened[0], [0, 1], [1, 0], *sharpened[1:]])


def test_a_mix_must_be_the_better_the_further_it_is_from_the_one_at_hand() -> None:
    # From (0.2, 0.8) to (0, 1) a fifth of the weight is moved: 0.02 hits. To (1, 0) four fifths.
    asked = optimism([np.array([0.2, 0.8]), np.array([0.0, 1.0]), np.array([1.0, 0.0])])
    assert asked == pytest.approx([0, 0.02, 0.08])
    at_hand = np.full(4, 0.5)
    assert choose_on_evidence([at_hand, at_hand + 0.015, at_hand + 0.07], asked) == 0
    assert choose_on_evidence([at_hand, at_hand + 0.025, at_hand + 0.07], asked) == 1
    assert choose_on_evidence([at_hand, at_hand + 0.025, at_hand + 0.09], asked) == 2


def test_evidence_by_hand() -> None:
    # Mean 0.2, standard deviation √(4·0.1²/3), of the mean half of it: 0.0577; half of that is taken off.
    assert evidence(np.array([0.1, 0.3, 0.1, 0.3])) == pytest.approx(0.2 - 0.5 * 0.2 / math.sqrt(3) / 2)
    assert evidence(np.array([0.2, 0.2])) == pytest.approx(0.2), "no doubt where all differences are the same"


@pytest.mark.parametrize("few", [[], [0.9]])
def test_one_point_or_none_is_no_evidence(few: list[float]) -> None:
    assert evidence(np.array(few)) == -math.inf


def test_a_sure_gain_is_taken_before_a_larger_doubtful_one() -> None:
    at_hand = np.full(4, 0.5)
    # Mean 0.1, standard deviation √((0.3² + 3·0.1²)/3) = 0.2, of the mean 0.1: evidence 0.05.
    doubtful = at_hand + np.array([0.4, 0, 0, 0])
    assert choose_on_evidence([at_hand, doubtful]) == 1
    assert choose_on_evidence([at_hand, doubtful, at_hand + 0.06]) == 2
    assert choose_on_evidence([at_hand, doubtful, at_hand + 0.04]) == 1
    # Mean 0.025, but one point for it and one against: 0.3 and −0.2, so that the error is 0.104.
    assert choose_on_evidence([at_hand, at_hand + np.array([0.3, -0.2, 0, 0])]) == 0


def test_nothing_better_leaves_the_one_at_hand() -> None:
    assert choose_on_evidence([np.full(4, 0.5)] * 3) == 0
    assert choose_on_evidence([np.empty(0)] * 3) == 0


def test_a_model_that_is_as_sure_as_it_is_right_is_taken_at_its_word() -> None:
    # It gives 0.8 to class 0 on ten points, and eight of them are of that class.
    logs, labels = np.log(np.tile([0.8, 0.2], (10, 1))), np.array([0] * 8 + [1] * 2)
    np.testing.assert_allclose(calibrated_hits(logs, labels), [0.8] * 8 + [0.2] * 2)


@pytest.mark.parametrize("times", [1 / 5, 1 / math.sqrt(5), math.sqrt(5), 5])
def test_how_sure_a_model_is_does_not_count(times: float) -> None:
    # The model of the test above with all outputs shrunk or stretched; 1/times is one of the temperatures.
    assert min(abs(1 / times - t) for t in TEMPERATURES) < 1e-9
    logs, labels = times * np.log(np.tile([0.8, 0.2], (10, 1))), np.array([0] * 8 + [1] * 2)
    np.testing.assert_allclose(calibrated_hits(logs, labels), [0.8] * 8 + [0.2] * 2)


def test_a_point_without_a_number_is_no_hit() -> None:
    logs = np.log(np.tile([0.8, 0.2], (11, 1)))
    logs[0] = np.nan
    hits = calibrated_hits(logs, np.array([0] * 9 + [1] * 2))
    np.testing.assert_allclose(hits, [0] + [0.8] * 8 + [0.2] * 2)
    assert calibrated_hits(np.full((2, 3), np.nan), np.array([0, 1])).tolist() == [0, 0]
    assert calibrated_hits(np.empty((0, 3)), np.empty(0, np.int64)).tolist() == []
