"""Metrics by hand, and against scikit-learn's as an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.later import Later

from ipfl.client.prediction_metrics import Predictions, choose_metrics, measure_predictions
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError

sk, special = Later("sklearn.metrics"), Later("scipy.special")

CLASSES = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "log_loss"]


def of_classes(outputs, truth):
    logs = special.log_softmax(np.asarray(outputs, float), axis=1)
    return Predictions(Target("classes", logs.shape[1]), logs, np.asarray(truth))


def test_what_is_not_defined_is_none():
    assert measure_predictions(["auroc"], of_classes([[1, 0], [0, 1]], [1, 1])) == [None]
    numbers = Predictions(Target("regression", 1, (0.0,), (1.0,)), np.zeros((2, 1)), np.array([3.0, 3.0]))
    assert measure_predictions(["mae", "r2"], numbers) == [3.0, None]
    assert measure_predictions(["mae"], Predictions(numbers.target, np.zeros((0, 1)), np.zeros(0))) == [None]


def test_regression_in_the_units_of_the_data():
    # Outputs (0, 1) are 10 and 14; truth 12 and 14: errors 2 and 0, deviations from 13 of 1 and 1.
    target = Target("regression", 1, (10.0,), (4.0,))
    found = measure_predictions(
        ["mae", "r2"], Predictions(target, np.array([[0.0], [1.0]]), np.array([12.0, 14.0]))
    )
    assert found == pytest.approx([1.0, 1 - 4 / 2])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(5, 40))
def test_classes_as_in_scikit_learn(seed, classes, n):
    rng = np.random.default_rng(seed)
    given_ = of_classes(rng.normal(size=(n, classes)).round(1), rng.integers(0, classes, n))
    truth, predicted = given_.truth, given_.predicted
    found = dict(zip(CLASSES, measure_predictions(CLASSES, given_), strict=True))
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(truth, predicted))
    assert found["macro_f1"] == pytest.approx(sk.f1_score(truth, predicted, average="macro"))
    assert found["log_loss"] == pytest.approx(
        sk.log_loss(truth, np.exp(given_.outputs), labels=range(classes))
    )
    recalls = sk.recall_score(truth, predicted, labels=np.unique(truth), average=None, zero_division=0)
    assert found["balanced_accuracy"] == pytest.approx(recalls.mean())
    parts = [
        sk.roc_auc_score(truth == c, given_.outputs[:, c])
        for c in range(classes)
        if 0 < (truth == c).sum() < n
    ]
    assert found["auroc"] == (pytest.approx(np.mean(parts)) if parts else None)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_labels_as_in_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    outputs, truth = rng.normal(size=(30, 3)), rng.integers(0, 2, (30, 3))
    truth[:2] = [[0, 0, 0], [1, 1, 1]]
    given_ = Predictions(Target("multilabel", 3), outputs, truth)
    names = ["accuracy", "macro_f1", "auroc", "log_loss"]
    found = measure_predictions(names, given_)
    expected = [
        1 - sk.hamming_loss(truth, outputs > 0),
        sk.f1_score(truth, outputs > 0, average="macro"),
        sk.roc_auc_score(truth, outputs, average="macro"),
        np.mean([sk.log_loss(truth[:, k], special.expit(outputs[:, k])) for k in range(3)]),
    ]
    assert found == pytest.approx(expected)


def test_own_metric_and_wrong_names():
    given_ = of_classes([[1, 0], [0, 1], [0, 1]], [0, 1, 0])
    (found,) = measure_predictions(["sklearn.metrics:matthews_corrcoef"], given_)
    assert found == pytest.approx(sk.matthews_corrcoef([0, 1, 0], [0, 1, 1]))
    with pytest.raises(InputError, match="unknown metric 'recal'"):
        choose_metrics(["recal"], given_.target)
    with pytest.raises(InputError, match="'mae' is not for the target 'classes'"):
        choose_metrics(["mae"], given_.target)
    assert choose_metrics(None, Target("regression", 1)) == ("mae", "r2")
    assert choose_metrics((), Target("regression", 1)) == ()
