import math

import pytest

from ipfl.client.privacy_accountant import RENYI_ORDERS, PrivacyBook, Releases, epsilon_of

DELTA = 1e-5


def releases(noise, count=1, rate=1.0):
    return Releases({(noise, rate): count})


class TestEpsilon:
    def test_one_gaussian(self):
        # The Rényi divergence of two Gaussians one sensitivity apart is α/(2z²); to ε by Canonne et al. 2020,
        # Proposition 12: ε = α/(2z²) + log((α−1)/α) − (log δ + log α)/(α−1), the least over α.
        # With z = 1 that is 4.75.
        by_hand = min(
            a / 2 + math.log((a - 1) / a) - (math.log(DELTA) + math.log(a)) / (a - 1) for a in RENYI_ORDERS
        )
        assert epsilon_of([releases(1.0)], DELTA) == pytest.approx(by_hand) == pytest.approx(4.75, abs=0.01)

    def test_four_with_twice_the_noise_are_as_one(self):
        # 4·α/(2·2²) = α/2
        assert epsilon_of([releases(2.0, 4)], DELTA) == pytest.approx(epsilon_of([releases(1.0)], DELTA))

    def test_steps_on_few_points_tell_less(self):
        assert epsilon_of([releases(1.0, 10, 0.1)], DELTA) < epsilon_of([releases(1.0, 10)], DELTA) / 3


class TestBook:
    def test_a_repeated_phase_counts_once_if_its_noise_is_the_same(self, tmp_path):
        book = PrivacyBook(tmp_path, is_seeded=True)
        for phase in ("0/train/7", "0/train/7", "1/train/9"):
            book.save(3, book.with_phase(3, phase, releases(1.0)))
        assert sum(book.load(3).values(), Releases()) == {(1.0, 1.0): 2}

    def test_and_every_time_if_it_is_secret(self, tmp_path):
        for phase in ("0/train/7", "0/train/7", "1/train/9"):
            book = PrivacyBook(tmp_path, is_seeded=False)  # another process may have written it
            book.save(3, book.with_phase(3, phase, releases(1.0, 2, 0.25)))
        assert sum(book.load(3).values(), Releases()) == {(1.0, 0.25): 6}
