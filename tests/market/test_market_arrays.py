"""Quick ways to read long columns, each beside the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.market.market_arrays import columns, median, nth_smallest

FEW_DIFFERENT = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf])
VALUES = arrays(np.float64, st.integers(1, 300), elements=FEW_DIFFERENT | st.floats(allow_nan=False))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (10_000, 2), (5000, 9)])
def test_columns(shape: tuple[int, int]) -> None:
    table = np.random.default_rng(0).random(shape)
    assert [column.tolist() for column in columns(table)] == table.T.tolist()


class TestNthSmallest:
    @given(VALUES, st.data())
    def test_as_after_sorting(self, values: np.ndarray, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(values) - 1))
        assert nth_smallest(values, n) == np.sort(values)[n]

    @pytest.mark.parametrize("n", [0, 1, 999, 25_000, 49_998, 49_999])
    @pytest.mark.parametrize(
        "values",
        [
            np.random.default_rng(1).normal(size=50_000),
            np.random.default_rng(1).integers(0, 3, 50_000).astype(float),  # ranks lie among equals
            np.maximum(np.random.default_rng(1).normal(size=50_000), 0.0),  # half of them
            np.zeros(50_000),
            np.arange(50_000.0),
        ],
        ids=["all different", "three values", "half zeros", "zeros", "sorted"],
    )
    def test_of_many(self, values: np.ndarray, n: int) -> None:
        # So many that a sample narrows the search: 782 values, ranks 25 000/64 ± 2·27 of them.
        assert nth_smallest(values, n) == np.sort(values)[n]

    def test_a_sample_that_misleads(self) -> None:
        # Every 64th value is 1, all others are 0 and below: no rank of the sample says where they are.
        values = -np.random.default_rng(2).random(50_000)
        values[::64] = 1.0
        for n in (0, 25_000, 49_000, 49_500):
            assert nth_smallest(values, n) == np.sort(values)[n]

    def test_unknown_values_come_last_as_in_numpy(self) -> None:
        values = np.where(np.arange(50_000) % 2 == 0, np.nan, np.arange(50_000.0))
        assert nth_smallest(values, 24_999) == 49_999
        assert np.isnan(nth_smallest(values, 25_000))


@given(arrays(np.float64, st.integers(1, 300), elements=st.sampled_from([0.0, 1.0]) | st.floats(0, 1)))
def test_median_to_the_last_digit(values: np.ndarray) -> None:
    assert median(values) == np.median(values)
