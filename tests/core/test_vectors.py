"""Arithmetic on flat vectors, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.core.vectors import distance, mean, mix


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


class TestMix:
    def test_by_hand(self):
        # ¼·(4, 8) + ½·(2, −2) = (2, 1); the weights do not have to sum to one.
        mixed = mix([vector(4, 8), vector(2, -2)], [0.25, 0.5])
        assert mixed.tolist() == [2, 1]
        assert mixed.dtype == np.float32

    def test_sums_in_float64(self):
        # In float32, 1 + 2⁻²⁵ is 1 again, and what is left after −1 would be 0.
        mixed = mix([vector(1), vector(2**-25), vector(-1)], [1, 1, 1])
        assert mixed.tolist() == [2**-25]

    def test_as_many_weights_as_vectors(self):
        with pytest.raises(ValueError):
            mix([vector(1), vector(2)], [1])


class TestMean:
    def test_weighted_by_hand(self):
        # (1·(0, 4) + 3·(8, 0)) / 4 = (6, 1)
        assert mean([vector(0, 4), vector(8, 0)], [1, 3]).tolist() == [6, 1]

    def test_equal_by_default(self):
        assert mean([vector(0, 4), vector(8, 0)]).tolist() == [4, 2]


def test_distance():
    assert distance(vector(1, 2), vector(4, 6)) == 5  # 3-4-5
