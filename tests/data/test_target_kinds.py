"""Kinds of targets and points: what is accepted, how it is kept, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.config.task_section import TaskConfig
from ipfl.data.dataset import Dataset, check_features, check_labels
from ipfl.data.from_task import federate
from ipfl.data.own.own_clients import from_clients
from ipfl.data.target_kinds import Target, check_number_targets
from ipfl.errors import InputError

X = np.arange(40, dtype=np.float32).reshape(20, 2)


class TestTarget:
    def test_numbers_are_standardised_by_the_training_points(self):
        # Mean 4, deviations −2, 0, 2: standard deviation √(8/3).
        target = Target.of_training("regression", 1, np.array([2.0, 4.0, 6.0]))
        scale = (8 / 3) ** 0.5
        assert target.scale == pytest.approx((scale,))
        np.testing.assert_allclose(target.encode(np.array([4.0, 4 + scale])), [[0], [1]], atol=1e-6)

    def test_a_constant_keeps_its_unit(self):
        assert Target.of_training("regression", 1, np.full(3, 7.0)).scale == (1.0,)

    @given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=10))
    def test_decoding_undoes_encoding(self, values):
        y = np.array(values)
        target = Target.of_training("regression", 1, y)
        decoded = target.decode(target.encode(y).astype(np.float64))[:, 0]
        np.testing.assert_allclose(decoded, y, atol=1e-5 * (1 + np.abs(y).max()))

    def test_false_targets(self):
        assert Target("classes", 3).wrong_targets(np.array([0, 2])).tolist() == [1, 0]
        assert Target("multilabel", 2).wrong_targets(np.array([[0, 1]])).tolist() == [[1, 0]]
        # Mirrored at the mean 4: 2·4 − 6.
        mirrored = Target("regression", 1, (4.0,), (1.0,)).wrong_targets(np.array([6.0, 4.0], np.float32))
        assert mirrored.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("kind", "y", "match"),
    [
        ("regression", np.ones((3, 2)), "shape"),
        ("regression", np.array([1.0, np.nan]), "not finite"),
        ("regression", np.array(["a", "b"]), "expected numbers"),
        ("multilabel", np.array([0, 1]), r"expected \(n, labels\)"),
        ("multilabel", np.array([[0, 2], [1, 1]]), "other values than 0 and 1"),
    ],
)
def test_wrong_targets(kind, y, match):
    with pytest.raises(InputError, match=match):
        check_number_targets(y, 2, kind, "y")


@pytest.mark.parametrize(
    ("y", "hint"), [(np.ones(2), 'predict = "regression"'), (np.ones((2, 3), int), 'predict = "multilabel"')]
)
def test_labels_that_look_like_another_target(y, hint):
    with pytest.raises(InputError, match=hint):
        check_labels(y, 2, "y")


class TestPoints:
    @pytest.mark.parametrize(
        ("x", "shape", "dtype"),
        [
            (np.ones((2, 3), np.uint8), (2, 3), np.uint8),
            (np.ones((2, 3), np.int32), (2, 3), np.int64),
            (np.ones((2, 3)), (2, 3), np.float32),
            (np.ones((2, 3, 4), np.uint8), (2, 3, 4, 1), np.uint8),
            (np.ones((2, 4, 4)), (2, 4, 4, 1), np.float32),  # square: grey images
            (np.ones((2, 5, 4)), (2, 5, 4), np.float32),  # a sequence
            (np.ones((2, 5, 4), np.int64), (2, 5, 4), np.float32),
        ],
    )
    def test_forms(self, x, shape, dtype):
        kept = check_features(x, "x")
        assert (kept.shape, kept.dtype) == (shape, dtype)

    def test_token_ids_are_counted(self):
        data = from_clients([(np.arange(20).reshape(10, 2), np.arange(10) % 2)])
        assert data.tokens == 20
        assert data.parts(0).train.x.dtype == np.int64
        assert from_clients([(X, np.arange(20) % 2)]).tokens is None
        assert from_clients([(X.astype(int) - 1, np.arange(20) % 2)]).tokens is None, "below 0"

    def test_whole_numbers_at_some_clients_only_are_features(self):
        y = np.arange(20) % 2
        data = from_clients([(X.astype(int), y), (X + 0.5, y)])
        assert {data.parts(client).train.x.dtype for client in (0, 1)} == {np.dtype(np.float32)}


class TestFederatedData:
    def test_of_clients(self):
        numbers = from_clients([(X, X[:, 0]), (X, X[:, 1])], predict="regression")
        assert (numbers.target.kind, numbers.classes) == ("regression", 1)
        pairs = from_clients([(X, X)], predict="regression")
        assert pairs.parts(0).train.y.shape[1:] == (2,)
        labels = from_clients([[(x, [1, 0, 1]) for x in X]], predict="multilabel")
        assert (labels.target.kind, labels.classes) == ("multilabel", 3)
        with pytest.raises(InputError, match="unknown predict 'numbers'"):
            from_clients([(X, X[:, 0])], predict="numbers")
        with pytest.raises(InputError, match="differ in the shape of a target"):
            from_clients([(X, X), (X, X[:, :1])], predict="regression")

    def test_of_a_file(self, tmp_path):
        np.savez(tmp_path / "numbers.npz", x=X, y=X.sum(axis=1))
        task = {"dataset": "npz", "path": tmp_path / "numbers.npz", "clients": 2, "predict": "regression"}
        data = federate(TaskConfig.of({**task, "distributions": "iid", "partition": "random"}), 0)
        assert data.target.kind == "regression"
        assert len(data.parts(0).train) > 0
        for setting, match in (
            ({"distributions": "permuted"}, "'permuted' needs classes"),
            ({"distributions": "iid", "partition": "dirichlet:1"}, "'dirichlet:1' needs classes"),
            ({"distributions": "iid", "label_noise": [0.5]}, "label_noise draws wrong classes"),
        ):
            with pytest.raises(InputError, match=match):
                federate(TaskConfig.of({**task, **setting}), 0)

    def test_known_data_sets_have_classes(self):
        with pytest.raises(InputError, match="digits has classes to predict"):
            federate(TaskConfig.of({"predict": "regression"}), 0)

    def test_width_must_be_the_number_of_outputs(self):
        with pytest.raises(InputError, match="holds 2 values per point, but classes = 3"):
            Dataset("mine", X, X, X, X, classes=3, target="regression")
