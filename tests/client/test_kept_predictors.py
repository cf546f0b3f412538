"""What clients predict with, as files: equal vectors are one, and nothing is written without room."""

from __future__ import annotations

import numpy as np
import pytest
from tests.small_runs import small_task

from ipfl.client import kept_predictors
from ipfl.client.kept_predictors import kept_clients, read_predictor, write_predictors
from ipfl.training.sgd import Mixture, NearestPrototype


@pytest.fixture(scope="module")
def network():
    return small_task().network(0)


def test_every_kind_is_read_as_it_was_written(network, tmp_path):
    one = network.read()
    other, prototypes = one + 1, np.full((10, network.classifier.in_features), np.nan, np.float32)
    given = {0: one, 1: Mixture((one, other), (0.25, 0.75)), 10: NearestPrototype(other, prototypes)}
    write_predictors(tmp_path, given.items())
    assert kept_clients(tmp_path) == (0, 1, 10)
    np.testing.assert_array_equal(read_predictor(tmp_path, 0, network), one)
    mixture, nearest = (read_predictor(tmp_path, client, network) for client in (1, 10))
    assert mixture.weights == (0.25, 0.75)
    np.testing.assert_array_equal(mixture.models, (one, other))
    np.testing.assert_array_equal(nearest.model, other)
    np.testing.assert_array_equal(nearest.prototypes, prototypes)
    assert len(list((tmp_path / "vectors").iterdir())) == 2


def test_clients_are_kept_until_there_is_no_room(tmp_path, monkeypatch):
    """Ten floats of four bytes: two vectors fit into 100 bytes. Client 2 has no new one, client 3 would."""
    monkeypatch.setattr(kept_predictors, "MAX_KEPT_BYTES", 100)
    vectors = [np.full(10, value, np.float32) for value in (0, 1, 0, 2, 1)]
    for _ in range(2):  # what was there goes
        write_predictors(tmp_path, enumerate(vectors))
        assert kept_clients(tmp_path) == (0, 1, 2)
