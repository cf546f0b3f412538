"""What clients predict with, as files: equal vectors are one, and nothing is written without room."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from tests.small_runs import small_task

from ipfl.client import kept_predictors
from ipfl.client.kept_predictors import (
    keep_predictor,
    kept_clients,
    kept_vectors,
    read_predictor,
    write_predictor,
)
from ipfl.training.predictors import Mixture, NearestPrototype


@pytest.fixture(scope="module")
def network():
    return small_task().network(0)


def test_every_kind_is_read_as_it_was_written(network, tmp_path):
    one = network.read()
    other, prototypes = one + 1, np.full((10, network.classifier.in_features), np.nan, np.float32)
    write_predictor(tmp_path, 0, one)
    write_predictor(tmp_path, 1, Mixture((one, other), (0.25, 0.75)))
    write_predictor(tmp_path, 10, NearestPrototype(other, prototypes))
    assert kept_clients(tmp_path) == (0, 1, 10)
    np.testing.assert_array_equal(read_predictor(tmp_path, 0, network), one)
    mixture, nearest = (read_predictor(tmp_path, client, network) for client in (1, 10))
    assert mixture.weights == (0.25, 0.75)
    np.testing.assert_array_equal(mixture.models, (one, other))
    np.testing.assert_array_equal(nearest.model, other)
    np.testing.assert_array_equal(nearest.prototypes, prototypes)
    assert kept_vectors(tmp_path, 1) == [*kept_vectors(tmp_path, 0), *kept_vectors(tmp_path, 10)]
    assert len(list((tmp_path / "vectors").iterdir())) == 2


def test_only_clients_for_whom_there_is_room_in_any_case(tmp_path, monkeypatch):
    """Ten floats of four bytes: two vectors fit into 100 bytes, so clients 0 and 1 are sure of theirs."""
    monkeypatch.setattr(kept_predictors, "MAX_KEPT_BYTES", 100)
    for client in (3, 2, 1, 0):
        keep_predictor(tmp_path, client, np.full(10, client, np.float32), 10)
    assert kept_clients(tmp_path) == (0, 1)


@pytest.mark.parametrize(("code", "is_passed_over"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_full_disk_is_no_failure_of_the_evaluation(tmp_path, monkeypatch, code, is_passed_over):
    def refuse(path, record):
        raise OSError(code, "no", str(path))

    monkeypatch.setattr(kept_predictors, "write_record", refuse)
    if is_passed_over:
        keep_predictor(tmp_path, 0, np.zeros(10, np.float32), 10)
    else:
        with pytest.raises(OSError, match="no"):
            keep_predictor(tmp_path, 0, np.zeros(10, np.float32), 10)
    assert kept_clients(tmp_path) == ()
