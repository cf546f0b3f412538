"""A client's own mix of models of two parameters: what counts as evidence, and what the mix costs.

The logits of a point x are (w_0·x, w_1·x): a model (w, −w) with w > 0 says class 0 of every x > 0.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.client.persons import RIGHT, WRONG, person
from tests.federation import ZERO, client, points, setup, sigma

from ipfl.client.client import Client
from ipfl.client.own_points import OwnPoints
from ipfl.core import Record
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.personalization import mix_on_evidence


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

    @pytest.mark.parametrize(
        ("use_probe", "hold_back", "kept"), [(True, 0.5, 1), (True, 1, 0), (False, 0.5, 0)]
    )
    def test_more_is_asked_of_points_that_were_trained_on(self, use_probe, hold_back, kept, monkeypatch):
        asked = []
        monkeypatch.setattr(
            "ipfl.methods.ipfl_plus.personalization.choose_on_evidence",
            lambda _, ask_for: asked.append(ask_for) or 0,
        )
        method = IPFL(hold_back=hold_back)
        offer = method.offer(method.init(setup(1)), 0)
        method.personalize(offer, Record(), person([(1, 0)], goal=[(1, 1)], use_probe=use_probe))
        assert [one is not None for one in asked] == [bool(kept)]
        other = person([(1, 0)], goal=[(1, 1)], probe=[(1, 0)], use_probe=use_probe)
        method.personalize(offer, Record(), other)
        assert asked.pop() is None, "nobody trains on a goal that is something else"

    @pytest.mark.parametrize("mix", ["paper", "best", "tuned", "evidence"])
    def test_nothing_is_trained(self, mix, monkeypatch):
        monkeypatch.setattr(Client, "train", lambda *_, **__: pytest.fail("trained"))
        me = person([(2, 0)] * 4, goal=[(1, 0), (2, 0)])
        offer = Record({"cluster_0": ZERO, "cluster_1": ZERO}, {"clusters": [0, 1], "means": [0.5, 0.5]})
        assert IPFL(mix=mix).personalize(offer, Record(), me).tolist() == [0, 0]

    @pytest.mark.parametrize(
        ("mix", "passes"),
        [
            ("paper", 2),  # both models
            ("tuned", 2 + 5),  # and five mixes of them
            ("evidence", 2 + 2 * 7),  # all seven candidates on `goal` and on `train`
        ],
    )
    def test_cost(self, mix, passes):
        method = IPFL(mix=mix)
        assert method.personalize_cost(method.init(setup(4))) == passes


class TestClient:
    def test_training_on_some_points_only(self):
        # At w = 0 the gradient of (2, class 0) is (−1, 1), of (2, class 1) the opposite: together nothing.
        me = client((2, 0), (2, 1))
        np.testing.assert_allclose(me.train(ZERO), [0, 0], atol=1e-8)
        np.testing.assert_allclose(me.train(ZERO, on=points((2, 0))), [0.1, -0.1], rtol=1e-6)

    def test_log_probabilities_by_hand(self):
        # Logits (2, −2) at x = 2: log σ(4) and log σ(−4); at x = 0 two halves.
        logs = client((2, 0)).log_scores(RIGHT, points((2, 1), (0, 0)))
        np.testing.assert_allclose(np.exp(logs), [[sigma(4), sigma(-4)], [0.5, 0.5]], rtol=1e-5)

    def test_log_probabilities_of_no_points(self):
        me = client((2, 0))
        assert me.log_scores(RIGHT, me.data("goal")).shape == (0, 2)
