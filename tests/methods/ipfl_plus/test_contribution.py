"""Contributions: agreement and what is new in an update by hand, the paper's gradient, what is remembered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.methods.ipfl_plus.scripted import HONEST, market, no_answer, play

from ipfl.market.seating import Seating
from ipfl.methods.ipfl_plus.contribution import (
    DECAY,
    LOST_PRIORITY,
    ContributionRecord,
    agreement,
    contributions_by_agreement,
    is_new,
    remember,
    standard_scores,
)
from ipfl.methods.ipfl_plus.updates import MOMENTUM, STRETCH, UpdateProducts, next_direction

ONES = np.ones(3)


def products(steps: np.ndarray, public: Sequence[np.ndarray] = (), direction: Any = None) -> UpdateProducts:
    """The table of these updates, from a model of zeros."""
    direction = None if direction is None else np.asarray(direction)
    known = [(np.zeros_like(one), one) for one in public]
    return UpdateProducts.of(list(steps), np.zeros(steps.shape[1]), known, direction)


def agree(steps: np.ndarray, weights: np.ndarray, direction: Any = None) -> np.ndarray:
    """Agreement with the others, and with a running direction if there is one."""
    share = weights / weights.sum()
    return agreement(products(steps, (), direction), share, with_direction=direction is not None)


class TestProducts:
    def test_by_hand(self):
        # Updates (1, 2) and (0, −1) from (1, 1); known are (3, 0), the way from (1, 2) to (4, 2), and, as the
        # running direction, (0, 5).
        models = [np.array([2.0, 3], np.float32), np.array([1.0, 0], np.float32)]
        known = (np.array([1.0, 2], np.float32), np.array([4.0, 2], np.float32))
        direction = np.array([0.0, 5], np.float32)
        found = UpdateProducts.of(models, np.ones(2, np.float32), [known], direction)
        assert found.among.tolist() == [[5, -2], [-2, 1]]
        assert found.along.tolist() == [[3, 10], [0, -5]]
        assert found.known.tolist() == [[9, 0], [0, 25]]
        assert found.has_direction
        np.testing.assert_allclose(found.lengths, [math.sqrt(5), 1])
        second = found.only(np.array([False, True]))
        assert (second.among.tolist(), second.along.tolist()) == ([[1]], [[0, -5]])

    @pytest.mark.parametrize("size", [1, STRETCH - 1, STRETCH, 2 * STRETCH + 3])
    def test_stretch_by_stretch_as_at_once(self, size):
        rng = np.random.default_rng(size)
        before, direction, *models = rng.normal(size=(6, size)).astype(np.float32)
        steps = np.stack(models).astype(np.float64) - before
        known = np.stack([models[1] - before, models[2] - models[0], direction]).astype(np.float64)
        ways = [(before, models[1]), (models[0], models[2])]
        found = UpdateProducts.of(models, before, ways, direction)
        np.testing.assert_allclose(found.among, steps @ steps.T, rtol=1e-10)
        np.testing.assert_allclose(found.along, steps @ known.T, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found.known, known @ known.T, rtol=1e-6, atol=1e-6)


class TestAgreement:
    def test_with_the_mean_of_the_others(self):
        # Equal weights. (1, 0) beside (0, 1) + (1, 1) = (1, 2): cosine 1/√5. (0, 1) beside (2, 1): 1/√5.
        # (1, 1) beside (1, 1): 1.
        steps = np.array([[1.0, 0], [0, 1], [1, 1]])
        np.testing.assert_allclose(agree(steps, ONES), [1 / math.sqrt(5), 1 / math.sqrt(5), 1])

    def test_nothing_to_compare_with(self):
        assert np.isnan(agree(np.array([[3.0, 4]]), np.ones(1)))[0]
        # The other one did not move; and who did not move agrees with nobody, and with nobody not.
        found = agree(np.array([[3.0, 4], [0, 0]]), np.ones(2))
        assert np.isnan(found[0])
        assert found[1] == 0

    def test_a_single_update_is_compared_with_the_running_direction(self):
        assert agree(np.array([[3.0, 4]]), np.ones(1), np.array([1.0, 0]))[0] == pytest.approx(3 / 5)

    def test_a_running_direction_that_most_contradict_is_left_out(self):
        # Three go one way, one the other way. With M = (−4, 0) ψ would be −1, −1, −1, 1: M is what is wrong.
        # Without it client 0 is beside (1 + 1 − 1)/4 = ¼ of its way, client 3 beside ¾ of the other way.
        steps = np.array([[1.0, 0], [1, 0], [1, 0], [-1, 0]])
        for direction in ([-4.0, 0], [4.0, 0]):
            table = products(steps, (), direction)
            found = contributions_by_agreement(table, np.full(4, 1 / 4), is_noisy=True)  # new or not
            np.testing.assert_allclose(found, [1, 1, 1, -1])

    @given(
        arrays(np.float64, (4, 5), elements=st.floats(-2, 2, width=16)),
        arrays(np.float64, 4, elements=st.floats(0.5, 9)),
        arrays(np.float64, 5, elements=st.floats(-2, 2, width=16)),
    )
    def test_as_the_definition_says(self, steps, weights, direction):
        share = weights / weights.sum()
        found = agree(steps, weights, direction)
        for i, step in enumerate(steps):
            rest = direction + sum(share[j] * steps[j] for j in range(4) if j != i)
            length = np.linalg.norm(rest) * np.linalg.norm(step)
            if length > 1e-3 and np.linalg.norm(rest) > 1e-3:
                assert found[i] == pytest.approx(rest @ step / length, abs=1e-5)

    def test_the_running_direction_decays(self):
        # 0.8·(0 + 1) = 0.8, then 0.8·(0.8 + 2) = 2.24.
        first = next_direction(None, np.array([1.0]))
        assert first == pytest.approx([MOMENTUM])
        assert next_direction(first, np.array([2.0])) == pytest.approx([2.24])
        assert first.dtype == np.float32


class TestNew:
    P = 400
    """Squared cosines have to be above 16/400 = 0.04: cosines above 0.2."""

    def axes(self, *entries: dict[int, float]) -> np.ndarray:
        steps = np.zeros((len(entries), self.P))
        for row, entry in enumerate(entries):
            for axis, value in entry.items():
                steps[row, axis] = value
        return steps

    def test_a_zero_update_is_not_new(self):
        steps = self.axes({0: 1.0}, {0: 1.0, 1: 0.5}, {})
        assert is_new(products(steps, [])).tolist() == [True, True, False]

    def test_honest_updates_have_something_in_common_beyond_what_is_public(self):
        # Both go along the public axis 0. What is left is (3, 4) and (4, 3) in axes 1 and 2: cosine 24/25.
        # The third has nothing of that: only an axis of its own.
        steps = self.axes({0: 9.0, 1: 3.0, 2: 4.0}, {0: 9.0, 1: 4.0, 2: 3.0}, {0: 9.0, 5: 5.0})
        public = [self.axes({0: 2.0})[0].astype(np.float32)]
        expected = [[25, 24, 0], [24, 25, 0], [0, 0, 25]]
        np.testing.assert_allclose(products(steps, public).beyond_known, expected, atol=1e-9)
        assert is_new(products(steps, public)).tolist() == [True, True, False]

    def test_as_with_a_basis_of_long_vectors(self):
        # The slow way: a QR decomposition. Public are four directions, one nearly the sum of two others.
        rng = np.random.default_rng(3)
        public = list(rng.normal(size=(4, self.P)).astype(np.float32))
        public[2] = public[0] + public[1] + 1e-3 * public[2]
        steps = rng.normal(size=(5, self.P)) + rng.normal(size=(5, 4)) @ np.stack(public)
        basis, _ = np.linalg.qr(np.stack(public, axis=1).astype(np.float64))
        rest = steps - (steps @ basis) @ basis.T
        np.testing.assert_allclose(products(steps, public).beyond_known, rest @ rest.T, rtol=1e-6, atol=1e-6)

    def test_what_pulls_apart_is_new_as_well(self):
        # Cosine −1: they disagree, but neither is noise.
        assert is_new(products(self.axes({1: 1.0}, {1: -1.0}), [])).all()

    def test_a_replay_of_what_is_public_is_not_new(self):
        # The third sends the cluster's last two steps in some mixture.
        honest = [{0: 1.0, 1: 1.0, 2: 0.5, 9: 1.0}, {0: 1.0, 1: 1.0, 2: 0.4, 9: 2.0}]
        steps = self.axes(*honest, {0: 3.0, 1: 5.0, 2: 1.0})
        public = list(self.axes({0: 1.0, 1: 1.0}, {0: 1.0, 1: 3.0, 2: 1.0}).astype(np.float32))
        assert is_new(products(steps, public)).tolist() == [True, True, False]

    @pytest.mark.parametrize("seed", range(5))
    def test_noise_does_not_make_a_replay_new(self, seed):
        # Replay and noise of the same length: its cosine with anything else is of the order of 1/√P = 0.05.
        rng = np.random.default_rng(seed)
        public = [rng.normal(size=self.P).astype(np.float32)]
        common = rng.normal(size=self.P)
        honest = [public[0] + common + rng.normal(size=self.P) for _ in range(4)]  # cosine about 1/2
        replay = public[0] + rng.normal(size=self.P)
        steps = np.array([*honest, replay, replay + rng.normal(size=self.P) - replay])
        assert is_new(products(steps, public)).tolist() == [True] * 4 + [False] * 2

    def test_a_single_update_is_new_unless_it_is_public(self):
        public = [self.axes({0: 1.0})[0].astype(np.float32)]
        assert is_new(products(self.axes({0: 1.0, 1: 1.0}), public)).tolist() == [True]
        assert is_new(products(self.axes({0: 2.0}), public)).tolist() == [False]

    def test_what_is_not_new_contributes_nothing(self):
        # The replay goes along the running direction and would have the best cosine; it gets 0. Who goes
        # against it gets its own negative value, new or not.
        direction = self.axes({0: 1.0})[0].astype(np.float32)
        steps = self.axes({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}, {0: 5.0}, {0: -1.0})
        plain = agree(steps, np.ones(4), direction)
        found = contributions_by_agreement(products(steps, (), direction), np.full(4, 1 / 4))
        assert plain[2] > plain[0] > 0 > plain[3]
        np.testing.assert_allclose(found, [plain[0], plain[1], 0, plain[3]])


class TestRounds:
    def test_the_gradient_is_asked_of_the_providers(self) -> None:
        # ψ_i = −gᵀ λ_i (W_i − W_M) with g = −1 in all three coordinates, λ = 1/3: i − mean of the ids.
        _, (first,), engine = play(market(), 1, HONEST)
        assert engine.actions == ["train", "appraise"]
        assert set(engine.asks[1].to) == {seat.client for seat in first.done.seats}
        for k in (0, 1):
            rows = [row for row in first.done.market.contributions if row.cluster == k]
            ids = np.array([row.client for row in rows], float)
            np.testing.assert_allclose([row.psi for row in rows], ids - ids.mean(), rtol=1e-5)

    def test_without_an_answer_a_contribution_is_unknown_and_earns_all_the_same(self) -> None:
        _, (first,), _ = play(market(), 1, HONEST | {"appraise": no_answer})
        assert {row.psi for row in first.done.market.contributions} == {None}
        assert sum(row.amount for row in first.done.market.transfers if row.kind == "reward") == 600


def test_a_round_is_remembered_in_standard_scores_and_a_lost_seat_with_two_below() -> None:
    # Clients 0 and 1 deliver to cluster 0 for the first time: ψ = 1 and 3 are −1 and 1. Client 2 lost its
    # seat there: −2. In the second round only client 1 delivers, with nothing to compare it with: it stays.
    # Client 0 loses its seat; it has trained once, so −2 is the second of its values: ½·(−1) + ½·(−2).
    nobody = np.zeros((3, 1), bool)

    def seating(*clients: int, delivered: tuple[int, ...]) -> Seating:
        """Seats of these clients, some of which deliver."""
        table = np.zeros((2, 3, 1), bool)
        table[0, list(clients)] = table[1, list(delivered)] = True
        return Seating(table[0], nobody, table[1], nobody)

    omega = np.array([[1], [1], [0]])
    round_1 = seating(0, 1, 2, delivered=(0, 1))
    first = ContributionRecord.start(3, 1).after({0: np.array([1.0, 3.0])}, round_1, omega)
    assert first.psi.tolist() == [[-1], [1], [LOST_PRIORITY]] == [[-1], [1], [-2]]
    second = first.after({0: np.array([5.0])}, seating(0, 1, delivered=(1,)), np.array([[1], [2], [0]]))
    assert second.psi.tolist() == [[-1.5], [1], [-2]]
    assert second.after({}, Seating.empty((3, 1)), omega).psi.tolist() == second.psi.tolist()
    assert DECAY == 0.9  # from the tenth value on, each is worth a tenth


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
