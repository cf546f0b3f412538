"""The economy alone over many rounds (`benchmarks/economy.py`): nobody honest runs out of tokens."""

from __future__ import annotations

import pytest

from economy import DrawnContributions, Economy, Population, simulate


@pytest.mark.parametrize("clusters", [2, 4])
def test_a_small_economy_under_the_default_rules(clusters: int) -> None:
    end = simulate(clients=20, clusters=clusters, rounds=30)
    assert end.broke == 0
    assert 0 < end.gini < 0.5
    assert end.correlation is not None
    assert end.correlation > 0.5  # who contributes more has more
    assert end.seats == 10  # the whole budget, in every round
    assert simulate(clients=20, clusters=clusters, rounds=30) == end


def test_it_is_the_opening_that_keeps_clients_in_the_market() -> None:
    # Five prices for thirty rounds: who contributes little cannot pay any more.
    end = simulate(clients=20, clusters=2, rounds=30, opening=500, subsidy=0)
    assert end.broke > 0.05
    assert end.poorest < 1


def test_the_printed_rules_can_be_played_too() -> None:
    end = simulate(clients=20, clusters=2, rounds=10, preset="paper")
    assert end.seats > 0


def test_tokens_are_those_that_were_issued() -> None:
    method = DrawnContributions(clusters=2, allowance=3, subsidy=0)
    economy = Economy(method, Population.make(10, 2, seed=1), 5)
    for _ in range(5):
        economy.play()
    bank = economy.state.bank
    assert bank.balances.sum() == bank.issued == 10 * (100 * 100 + 5 * 3)


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "rounds"), [(2, 200), (4, 500)])
def test_at_most_one_in_twenty_is_ever_broke(clusters: int, rounds: int) -> None:
    """`benchmarks/economy.py` plays 500 rounds with both."""
    end = simulate(clients=100, clusters=clusters, rounds=rounds)
    assert end.broke <= 0.05
    assert end.gini < 0.4
    assert end.seats == 50
