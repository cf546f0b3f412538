"""The iteration of Proposition 1."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.theory.clustering import choose_clusters, clustering_loss, iterate, move_centres

numbers = st.floats(-100, 100, allow_subnormal=False)


def test_by_hand():
    """Clients at 0, 1, 5, 6 with 1, 3, 1, 1 observations; centres begin at 0 and 2.

    Choice 1: client 1 is as near to 0 as to 2 and takes the first: {0, 1}, {5, 6}; loss 3·1 + 9 + 16 = 28.
    Move: (0 + 3)/4 = ¾ and 5½; loss (¾)² + 3 (¼)² + ¼ + ¼ = ¾ + ½ = 1¼. No client changes.
    """
    done = iterate(np.array([0.0, 1, 5, 6]), np.array([1, 3, 1, 1]), np.array([0.0, 2]))
    assert done.losses == pytest.approx([28, 1.25])
    assert done.centres == pytest.approx([0.75, 5.5])
    assert done.choices[-1].tolist() == [0, 0, 1, 1]
    assert done.steps == 1


def test_a_local_minimum():
    """Clients at 0, 1 and 10, 11 stay together if the second centre begins far away: loss 4 · 25 + … > 1."""
    means, sizes = np.array([0.0, 1, 10, 11]), np.ones(4, dtype=int)
    stuck = iterate(means, sizes, np.array([5.0, 100]))
    assert stuck.choices[-1].tolist() == [0, 0, 0, 0]
    assert stuck.centres.tolist() == [5.5, 100]  # nobody chose the second: it stays
    assert stuck.losses[-1] == pytest.approx(5.5**2 * 2 + 4.5**2 * 2)
    assert iterate(means, sizes, np.array([0.0, 10])).losses[-1] == pytest.approx(1)


@given(
    st.lists(st.tuples(numbers, st.integers(1, 20)), min_size=1, max_size=25),
    st.lists(numbers, min_size=1, max_size=5),
)
def test_loss_never_rises_and_it_stops(clients, centres):
    means, sizes = np.array([mean for mean, _ in clients]), np.array([size for _, size in clients])
    done = iterate(means, sizes, np.array(centres))
    assert all(later <= earlier + 1e-9 * (1 + earlier) for earlier, later in pairwise(done.losses))
    assert len({tuple(choice) for choice in done.choices[:-1]}) == done.steps  # no choice returned
    # Nothing more to gain for anyone.
    assert np.array_equal(choose_clusters(means, done.centres, done.choices[-1]), done.choices[-1])
    moved = move_centres(means, sizes, done.centres, done.choices[-1])
    assert clustering_loss(means, sizes, moved, done.choices[-1]) == pytest.approx(done.losses[-1])


def test_the_printed_loss_can_rise():
    """One cluster, clients at 0 and 1 with 1 and 3 observations; its centre moves from 0.9 to the mean ¾.

    The printed loss Σ n_i/n · n_i (β − μ̂_i)² goes from (0.81 + 9 · 0.01)/4 = 0.225 up to
    (9/16 + 9/16)/4 = 0.28125; ours falls from 0.81 + 3 · 0.01 = 0.84 to 9/16 + 3/16 = 0.75.
    """
    means, sizes, one = np.array([0.0, 1]), np.array([1, 3]), np.array([0, 0])
    before = np.array([0.9])
    after = move_centres(means, sizes, before, one)
    printed = [float((sizes**2 * (b[0] - means) ** 2).sum() / 4) for b in (before, after)]
    assert printed == pytest.approx([0.225, 0.28125])
    assert [clustering_loss(means, sizes, b, one) for b in (before, after)] == pytest.approx([0.84, 0.75])
