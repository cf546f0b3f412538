"""A client's own training and log-probabilities by hand, with a model of two parameters."""

from __future__ import annotations

import numpy as np
from tests.client.persons import RIGHT
from tests.federation import ZERO, client, points, sigma


def test_training_on_some_points_only():
    # At w = 0 the gradient of (2, class 0) is (−1, 1), of (2, class 1) the opposite: together nothing.
    me = client((2, 0), (2, 1))
    np.testing.assert_allclose(me.train(ZERO), [0, 0], atol=1e-8)
    np.testing.assert_allclose(me.train(ZERO, on=points((2, 0))), [0.1, -0.1], rtol=1e-6)


def test_log_probabilities_by_hand():
    # Logits (2, −2) at x = 2: log σ(4) and log σ(−4); at x = 0 two halves.
    logs = client((2, 0)).log_scores(RIGHT, points((2, 1), (0, 0)))
    np.testing.assert_allclose(np.exp(logs), [[sigma(4), sigma(-4)], [0.5, 0.5]], rtol=1e-5)


def test_log_probabilities_of_no_points():
    me = client((2, 0))
    assert me.log_scores(RIGHT, me.data("goal")).shape == (0, 2)
