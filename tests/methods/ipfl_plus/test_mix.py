"""Mixes of cluster models by hand, what counts as evidence for another one, and clients that choose.

The clients' models have two parameters. The logits of a point x are (w_0·x, w_1·x): a model (w, −w) with
w > 0 says class 0 of every x > 0.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.client.persons import RIGHT, WRONG, person
from tests.federation import ZERO, setup

from ipfl.client.client import Client
from ipfl.client.own_points import OwnPoints
from ipfl.core import Record
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus
from ipfl.methods.ipfl_plus.mix import (
    TEMPERATURES,
    Mix,
    calibrated_hits,
    candidate_weights,
    choose_on_evidence,
    evidence,
    mix_on_evidence,
    optimism,
)


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


class TestMixing:
    def test_the_mix_at_hand_stays_without_evidence(self):
        # At x = 0 every model gives 1/2 to both classes, so that no mix is better than another.
        me = person([(0, 0), (0, 1)], goal=[(0, 0)])
        mixed = mix_on_evidence([RIGHT, 3 * RIGHT], np.array([0.25, 0.75]), OwnPoints.of(me, 128), me)
        # υ^4 = (1, 81)/82 of the outputs 1 and 3: 244/82.
        np.testing.assert_allclose(mixed, [244 / 82, -244 / 82], rtol=1e-6)

    def test_a_single_model_is_taken_if_the_mix_is_wrong(self):
        # υ = (0.4, 0.6) mixes (1, −1) and (−1, 1) to (−0.2, 0.2), which is wrong everywhere; so are υ^s for
        # s > 0, and s = 0 says nothing. Only the first model alone is right.
        me = person([(2, 0), (1, 0)], goal=[(3, 0)])
        mixed = mix_on_evidence([RIGHT, WRONG], np.array([0.4, 0.6]), OwnPoints.of(me, 128), me)
        assert mixed.tolist() == RIGHT.tolist()

    def test_one_point_is_not_enough(self):
        me = person([(2, 0)], goal=[(2, 0)])
        mixed = mix_on_evidence([RIGHT, WRONG], np.array([0.4, 0.6]), OwnPoints.of(me, 128), me)
        # υ^4 = (2^4, 3^4)/97 of 1 and −1.
        np.testing.assert_allclose(mixed, [-65 / 97, 65 / 97], rtol=1e-6)

    def test_the_paper_s_mix(self):
        # At x = 0 all are right on half of the points; with means (0.2, 0.4) the second counts half as much:
        # υ = (2/3, 1/3). Models 3·e and 0 then mix to 2·e.
        me, models = person([(0, 0)], goal=[(0, 0)]), {"cluster_0": 3 * RIGHT, "cluster_1": ZERO}
        offer = Record(models, {"clusters": [0, 1], "means": [0.2, 0.4]})
        mixed = IPFLPlus(mix=Mix(rule="paper")).personalize(offer, Record(), me)
        np.testing.assert_allclose(mixed, 2 * RIGHT, rtol=1e-5)

    @pytest.mark.parametrize("use_probe", [True, False])
    def test_more_is_asked_of_points_that_were_trained_on(self, use_probe, monkeypatch):
        asked = []
        monkeypatch.setattr(
            "ipfl.methods.ipfl_plus.mix.choose_on_evidence",
            lambda _, ask_for: asked.append(ask_for) or 0,
        )
        method = IPFLPlus()
        offer = method.offer(method.init(setup(1)), 0)
        method.personalize(offer, Record(), person([(1, 0)], goal=[(1, 1)], use_probe=use_probe))
        assert [one is not None for one in asked] == [use_probe]
        other = person([(1, 0)], goal=[(1, 1)], probe=[(1, 0)], use_probe=use_probe)
        method.personalize(offer, Record(), other)
        assert asked.pop() is None, "nobody trains on a goal that is something else"

    @pytest.mark.parametrize("rule", ["paper", "evidence"])
    def test_nothing_is_trained(self, rule, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: pytest.fail("trained"))
        me = person([(2, 0)] * 4, goal=[(1, 0), (2, 0)])
        offer = Record({"cluster_0": ZERO, "cluster_1": ZERO}, {"clusters": [0, 1], "means": [0.5, 0.5]})
        assert IPFLPlus(mix=Mix(rule=rule)).personalize(offer, Record(), me).tolist() == [0, 0]
