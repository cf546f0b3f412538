from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.errors import InputError
from ipfl.market.market_stats import rank_correlation
from ipfl.methods.ipfl_plus.profiler import (
    coalition_models,
    coalitions,
    estimate_contributions,
    remember,
    shapley_from_values,
    standard_scores,
)

# A quadratic loss L(w) = ½‖w − c‖² with c = (1, 1), whose gradient is w − c. Two clients with the same
# number of samples, W_1 = (1, 0) and W_2 = (2, 0): W_M = (1.5, 0), g = (0.5, −1).
LOCALS = np.array([[1.0, 0.0], [2.0, 0.0]])
AGGREGATE = np.array([1.5, 0.0])
GRADIENT = np.array([0.5, -1.0])


def exact_shapley(value: Callable[[tuple[int, ...]], float], players: int) -> np.ndarray:
    """Shapley values of a game: its value for every coalition, through `shapley_from_values`."""
    return shapley_from_values(np.array([value(members) for members in coalitions(players)]))


def test_normalised_contribution_on_a_quadratic() -> None:
    # −gᵀ λ (W_1 − W_M) = −½·(0.5·(−0.5)) = 0.125: nearer to c than the mean. The other one is the mirror.
    assert estimate_contributions(GRADIENT, AGGREGATE, LOCALS, np.array([0.5, 0.5])).tolist() == [
        0.125,
        -0.125,
    ]


def test_unnormalised_contribution_on_a_quadratic() -> None:
    # −gᵀ λ W_1 = −½·0.5·1 and −½·0.5·2.
    psi = estimate_contributions(GRADIENT, AGGREGATE, LOCALS, np.array([0.5, 0.5]), normalised=False)
    assert psi.tolist() == [-0.25, -0.5]


def test_sample_counts_do_for_weights() -> None:
    # λ = 1/4, 3/4, W_M = (1.75, 0), g = (0.75, −1): ψ_1 = −¼·0.75·(−0.75) = 9/64 = −ψ_2.
    psi = estimate_contributions(np.array([0.75, -1.0]), np.array([1.75, 0.0]), LOCALS, np.array([30, 90]))
    np.testing.assert_allclose(psi, [9 / 64, -9 / 64])


def test_a_client_whose_model_is_not_finite_is_unknown_and_the_others_are_not() -> None:
    locals_ = np.array([[1.0, 0.0], [np.inf, 0.0], [np.nan, 1.0]], np.float32)
    psi = estimate_contributions(GRADIENT, AGGREGATE, locals_, np.ones(3))
    assert np.isnan(psi).tolist() == [False, True, True]


def test_weights_that_sum_to_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="positive sum"):
        estimate_contributions(GRADIENT, AGGREGATE, LOCALS, np.zeros(2))


def test_sums_in_float64() -> None:
    # 1e4 parameters of 1e-4 beside one of 1e4: in float32 the small ones would be lost in the large one.
    local = np.full(10_001, 1e-4, np.float32)
    local[0] = 1e4
    psi = estimate_contributions(
        np.ones(10_001, np.float32), np.zeros(10_001, np.float32), [local], np.ones(1)
    )
    assert psi[0] == pytest.approx(-(1e4 + 1e4 * float(np.float32(1e-4))), rel=1e-12)


def test_contributions_rank_clients_as_exact_shapley_values_do() -> None:
    # Six clients on a line at 0, 1, …, 5, all with the same samples; the loss wants 5, the previous model
    # was at −1. The nearer to 5, the larger the contribution, exact or not.
    locals_ = np.arange(6, dtype=np.float32)[:, None]
    target, previous, weights = 5.0, np.array([-1.0], np.float32), np.ones(6)
    models = np.array(list(coalition_models(locals_, weights, previous)))
    losses = 0.5 * (models[:, 0] - target) ** 2
    exact = shapley_from_values(losses[0] - losses)
    mean = locals_.mean(axis=0)
    approximate = estimate_contributions(mean - target, mean, locals_, weights)
    assert rank_correlation(approximate, exact) == pytest.approx(1)
    assert exact.sum() == pytest.approx(0.5 * 6**2 - 0.5 * 2.5**2)  # L(previous) − L(all)


def test_coalitions_by_bitmask() -> None:
    assert coalitions(3) == [(), (0,), (1,), (0, 1), (2,), (0, 2), (1, 2), (0, 1, 2)]


def test_coalition_models_are_normalised_means() -> None:
    # Samples 1 and 3: alone each is itself, together (1·0 + 3·4)/4 = 3; nobody leaves the previous model.
    locals_ = [np.array([0.0], np.float32), np.array([4.0], np.float32)]
    models = list(coalition_models(locals_, np.array([1, 3]), np.array([9.0], np.float32)))
    assert [model.tolist() for model in models] == [[9.0], [0.0], [4.0], [3.0]]
    assert {model.dtype for model in models} == {np.dtype(np.float32)}


def test_additive_game_gives_everyone_its_own() -> None:
    worth = [3.0, -1.0, 0.5, 2.0]
    np.testing.assert_allclose(exact_shapley(lambda c: sum(worth[i] for i in c), 4), worth)


def test_airport_game() -> None:
    # Runway costs 1, 2, 3; a coalition pays for its largest plane. The first unit is shared by three, the
    # second by two, the third by one: 1/3, 1/3 + 1/2, 1/3 + 1/2 + 1.
    costs = [1.0, 2.0, 3.0]
    shapley = exact_shapley(lambda c: max((costs[i] for i in c), default=0.0), 3)
    np.testing.assert_allclose(shapley, [1 / 3, 5 / 6, 11 / 6])


def test_glove_game() -> None:
    # Player 0 has a left glove, 1 and 2 a right one each; a pair is worth 1. Player 0 is pivotal unless it
    # comes first (2/3), each other only if it comes right after 0 as the first of the two (1/6).
    shapley = exact_shapley(lambda c: float(0 in c and len(c) > 1), 3)
    np.testing.assert_allclose(shapley, [2 / 3, 1 / 6, 1 / 6])


def test_majority_game_is_symmetric() -> None:
    np.testing.assert_allclose(exact_shapley(lambda c: float(len(c) >= 3), 5), [0.2] * 5)


@given(
    st.integers(1, 6).flatmap(lambda n: arrays(np.float64, 2**n, elements=st.floats(-1e3, 1e3))),
)
def test_efficiency_the_values_add_up_to_what_all_together_are_worth(values: np.ndarray) -> None:
    assert shapley_from_values(values).sum() == pytest.approx(values[-1] - values[0], abs=1e-6)


def test_limits() -> None:
    with pytest.raises(InputError, match="at most 12"):
        exact_shapley(lambda c: 0.0, 13)
    with pytest.raises(ValueError, match="every coalition"):
        shapley_from_values(np.zeros(3))


def test_memory_is_an_exponential_average_per_client_and_cluster() -> None:
    memory = np.array([[4.0, np.nan], [np.nan, 1.0], [7.0, 7.0]])
    before = memory.copy()
    # Client 0: 0.5·4 + 0.5·2 = 3. Client 1: first seen. Client 2: not finite, so what was known stays.
    after = remember(memory, np.array([0, 1, 2]), 0, np.array([2.0, -1.0, np.nan]), decay=0.5)
    np.testing.assert_array_equal(after, [[3.0, np.nan], [-1.0, 1.0], [7.0, 7.0]])
    np.testing.assert_array_equal(memory, before)
    # The other cluster, with a shorter memory: 0.25·7 + 0.75·3 = 4.
    after = remember(memory, np.array([0, 2]), 1, np.array([5.0, 3.0]), decay=0.25)
    np.testing.assert_array_equal(after, [[4.0, 5.0], [np.nan, 1.0], [7.0, 4.0]])


def test_the_first_values_count_alike() -> None:
    # Decay 0.75. Values 4, 1, 1, 1, 5 of one client: means 4, 5/2, 2, 7/4 (weights 0, 1/2, 2/3, 3/4 of the
    # past), and from the fifth on 3/4 of the past: 3/4·7/4 + 1/4·5 = 41/16 (a plain mean would have 4/5).
    memory, means = np.full((1, 1), np.nan), []
    for count, value in enumerate([4.0, 1.0, 1.0, 1.0, 5.0], start=1):
        memory = remember(memory, np.array([0]), 0, np.array([value]), 0.75, np.array([count]))
        means.append(float(memory[0, 0]))
    assert means == pytest.approx([4, 5 / 2, 2, 7 / 4, 41 / 16])


def test_a_count_of_a_value_that_stayed_unknown_does_not_make_the_next_one_weightless() -> None:
    # Two rounds without a comparison, then a value: nothing was known, so it is taken as it is.
    assert remember(np.full((1, 1), np.nan), np.array([0]), 0, np.array([2.0]), 0.9, np.array([3])) == 2


@pytest.mark.parametrize(
    ("psi", "expected"),
    [
        ([1.0, 2.0, 3.0], [-math.sqrt(1.5), 0.0, math.sqrt(1.5)]),  # mean 2, deviation √(2/3)
        ([1.0, np.nan, 3.0], [-1.0, np.nan, 1.0]),  # what is unknown stays so, and does not count
        ([0.2, 0.2, 0.2], [0.0, 0.0, 0.0]),  # alike
        ([0.0, 0.0], [0.0, 0.0]),
        ([5.0], [np.nan]),  # nothing to compare it with
        ([5.0, np.nan], [np.nan, np.nan]),
        ([], []),
    ],
)
def test_standard_scores_by_hand(psi: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(standard_scores(np.array(psi)), expected, atol=1e-12)


def test_standard_scores_do_not_depend_on_unit_and_zero() -> None:
    psi = np.array([0.1, 0.7, 0.3, 0.2])
    np.testing.assert_allclose(standard_scores(psi), standard_scores(1e-6 * psi - 3e-6))
