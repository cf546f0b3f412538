"""Errors of section 3: by hand, against each other, and against simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.core import stream
from ipfl.errors import InputError
from ipfl.theory.gaussian_means import (
    PROCEDURES,
    READINGS,
    GaussianMeans,
    contribution,
    farthest_newcomer,
    largest_spread,
)
from ipfl.theory.monte_carlo import beside, estimate, simulate_contribution, simulate_means

UNEQUAL = GaussianMeans((4, 2, 7, 5, 3, 9, 6, 1), first=5, gap=0.7, sigma=1.5, tau=0.6)
TRIALS = 40_000
clients = st.integers(2, 50)
positive = st.floats(0.01, 10)


def is_within(simulated, value, errors=4):
    """Four standard errors: missed by chance once in 16,000 times; the seed is fixed."""
    return abs(simulated.mean - value) < errors * simulated.standard_error


class TestByHand:
    """Three clients with 1, 1 and 2 observations of σ = 2, the last in T₂, β₂ − β₁ = 4, τ = 1."""

    model = GaussianMeans((1, 1, 2), first=2, gap=4.0, sigma=2.0, tau=1.0)

    def test_local(self):
        assert self.model.procedure_error("local") == self.model.noise == 4  # σ²/n₀ = 4/1

    def test_federated(self):
        """w = ¼, ¼, ½. Bias (½ · 4)² = 4; noise 4/16 + 4/16 + ¼ · 4/2 = 1 = σ²/n.

        Spread: exact 1/16 + ¼ + (¾)² = 14/16, printed 2 (1/16 + ¼) = 10/16.
        """
        assert self.model.procedure_error("federated") == pytest.approx(4 + 1 + 14 / 16)
        assert self.model.procedure_error("federated", "printed") == pytest.approx(4 + 1 + 10 / 16)

    def test_clustered(self):
        """w = ½, ½, 0: noise 4/4 + 4/4 = 2; spread ¼ + ¼ in both readings, as there are two clients."""
        assert self.model.procedure_error("clustered") == pytest.approx(2.5)
        assert self.model.procedure_error("clustered", "printed") == pytest.approx(2.5)

    def test_no_client_and_no_observation_are_refused(self):
        for sizes, first in (((1, 1), 0), ((1, 1), 3), ((1, 0), 1)):
            with pytest.raises(InputError):
                GaussianMeans(sizes, first, 0.0, 1.0, 1.0)


class TestEqualSizes:
    @given(m=clients, noise=positive, tau=positive)
    def test_formulas_and_their_conditions(self, m, noise, tau):
        """Exact: s/m₁ + τ² (m₁ − 1)/m₁, below s if and only if τ² < s.

        Printed: s/m₁ + 2τ² (m₁ − 1)/m₁², below s if and only if τ² < m₁ s/2.
        """
        model = GaussianMeans.of_equal_sizes(m, 3, 4, gap=1.0, sigma=2 * noise**0.5, tau=tau)
        for reading, factor, limit in (("exact", 1, noise), ("printed", 2 / m, m * noise / 2)):
            error = model.procedure_error("clustered", reading)
            assert error == pytest.approx(noise / m + factor * tau**2 * (m - 1) / m)
            assert largest_spread(m, noise, reading) == pytest.approx(limit)
            if abs(tau**2 - limit) > 1e-6 * limit:
                assert (error < noise) == (tau**2 < limit)

    @given(first=clients, second=clients, tau=st.floats(0, 0.9))
    def test_at_the_smallest_gap_one_model_is_as_good_as_two(self, first, second, tau):
        """With m = m₁ + m₂, federated minus clustered error is (m₂/m)² gap² − (s − τ²) m₂/(m m₁)."""
        gap = ((1.0 - tau**2) * (first + second) / (first * second)) ** 0.5
        model = GaussianMeans.of_equal_sizes(first, second, 1, gap=gap, sigma=1.0, tau=tau)
        assert model.procedure_error("federated") == pytest.approx(model.procedure_error("clustered"))


class TestContribution:
    def test_two_clients_with_one_mean(self):
        """Alone the error is s, together s/2: the second client is worth s/2 to the first."""
        assert contribution(1, noise=3.0, tau=0.0, distance=0.0) == pytest.approx(1.5)

    @given(m=clients, noise=positive, tau=positive)
    def test_a_newcomer_of_the_same_kind_is_worth_one_more_client(self, m, noise, tau):
        """The distance enters as its square, whose mean is τ²."""
        errors = [
            GaussianMeans.of_equal_sizes(n, 0, 1, gap=0.0, sigma=noise**0.5, tau=tau).procedure_error(
                "clustered"
            )
            for n in (m, m + 1)
        ]
        assert contribution(m, noise, tau, tau) == pytest.approx(errors[0] - errors[1], abs=1e-9)

    def test_nothing_at_the_farthest_place(self):
        """m₁ = 10, s = 0.9, τ = 0.4: d² = (11 · 0.9 − 0.16)/10 = 0.974."""
        reach = farthest_newcomer(10, 0.9, 0.4)
        assert reach**2 == pytest.approx(0.974)
        assert contribution(10, 0.9, 0.4, reach) == pytest.approx(0, abs=1e-12)
        assert contribution(10, 0.9, 0.4, 0.9 * reach) > 0 > contribution(10, 0.9, 0.4, 1.1 * reach)
        assert farthest_newcomer(10, 0.01, 2.0) == 0

    def test_simulated(self):
        places = np.array([0.0, 1.0, 3.0])
        simulated = simulate_contribution(4, 0.9, 0.4, places, TRIALS, 0, "test")
        for one, distance in zip(simulated, places, strict=True):
            assert is_within(estimate(one), contribution(4, 0.9, 0.4, float(distance)))


class TestSimulation:
    @pytest.mark.parametrize("reading", READINGS)
    @pytest.mark.parametrize("procedure", PROCEDURES)
    def test_each_formula_holds_for_its_way_of_drawing(self, procedure, reading):
        """The printed one for clients that are drawn one by one."""
        drawn = simulate_means(UNEQUAL, TRIALS, 0, "test", reading=reading)
        simulated = estimate(drawn.errors(UNEQUAL.weights(procedure)))
        assert is_within(simulated, UNEQUAL.procedure_error(procedure, reading))

    def test_printed_formula_does_not_hold_for_the_model(self):
        """Ten clients: exact 0.09 + 0.9 τ², printed 0.09 + 0.18 τ²."""
        model = GaussianMeans.of_equal_sizes(10, 0, 10, gap=0.0, sigma=3.0, tau=1.0)
        simulated = estimate(simulate_means(model, TRIALS, 0, "test").errors(model.weights("clustered")))
        assert is_within(simulated, 0.99)
        assert not is_within(simulated, 0.27, errors=50)

    def test_means_may_be_drawn_instead_of_observations(self):
        """The same errors from all observations one by one, with n_j/n weights."""
        rng = stream(0, "test observations")
        n, m, trials = 4, 3, 20_000
        model = GaussianMeans.of_equal_sizes(m, 0, n, gap=0.0, sigma=2.0, tau=0.5)
        means = 0.5 * rng.standard_normal((trials, m, 1))
        observed = means + 2.0 * rng.standard_normal((trials, m, n))
        simulated = estimate((observed.mean(axis=(1, 2)) - means[:, 0, 0]) ** 2)
        assert is_within(simulated, model.procedure_error("clustered"))

    def test_band(self):
        """1, 2, 3, 4: mean 2.5, s² = 5/3, standard error √(5/12)."""
        one = estimate(np.array([1.0, 2.0, 3.0, 4.0]))
        assert one.standard_error == pytest.approx((5 / 12) ** 0.5)
        half = 1.96 * (5 / 12) ** 0.5
        point = {"formula": 2.0, "mean": 2.5, "low": 2.5 - half, "high": 2.5 + half}
        assert beside(2.0, np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(point)
