"""Settlement of pools: who is reimbursed, who earns, what happens to a pool that nobody earned."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.market.bank import TokenAccounts, TokenManager
from ipfl.market.settlement import Served, SettlementRule, settle, usual_score_after

PRICE = 10
NOW = SettlementRule("shortfall", eta=0.5, gamma=0.1)
PRINTED = SettlementRule("printed", eta=0.5, gamma=0.1)


def manager(pools: list[int], clients: int = 5) -> TokenManager:
    """Clients without tokens, and pools with these."""
    made = TokenManager(TokenAccounts.open(range(clients), len(pools), 0), PRICE)
    for cluster, tokens in enumerate(pools):
        made.subsidise(cluster, np.array([0]), tokens)
    return made


def kinds(accounts: TokenManager) -> set[str]:
    return {row.kind for row in accounts.transfers} - {"allowance"}


def served(
    payers: list[int],
    providers: list[int],
    psi: list[float],
    score: list[float] | None = None,
    usual: list[float] | None = None,
    omega: list[int] | None = None,
) -> Served:
    """One cluster of five clients whose seats all delivered; scores and participation have a value each."""
    tables = np.zeros((3, 5, 1), bool)
    tables[0, payers] = tables[1, providers] = tables[2, providers] = True
    unknown = [np.nan] * 5
    scores = np.array([score or unknown, usual or unknown])[..., None]
    return Served(*tables, {0: np.array(psi)} if providers else {}, np.array([omega or [0] * 5]).T, *scores)


def test_only_positive_contributions_earn() -> None:
    # 60 tokens; ranks among clients 0 and 2 alone: 1 and 2. 0 is no contribution.
    accounts = manager([60])
    settle(accounts, NOW, served([0, 1, 2], [0, 1, 2], [0.1, 0.0, 0.3]), {})
    assert accounts.balances.tolist() == [20, 0, 40, 0, 0]
    assert kinds(accounts) == {"reward"}


def test_an_unknown_contribution_earns_less_than_any_known_one() -> None:
    # A single provider cannot be compared with anybody, and is paid; beside others it has rank 1 of 3.
    accounts = manager([60])
    settle(accounts, NOW, served([0], [0, 1, 2], [np.nan, 0.2, 0.3]), {})
    assert accounts.balances.tolist() == [10, 20, 30, 0, 0]


@pytest.mark.parametrize("rule", [NOW, PRINTED])
def test_without_providers_everything_goes_back_to_those_who_paid(rule: SettlementRule) -> None:
    # Even a payer with a claim gets no more than its price: there was nothing to fall short of.
    accounts = manager([30])
    share = settle(
        accounts, rule, served([0, 1, 4], [], [], score=[0.1] * 5, usual=[0.9] * 5), {0: (0.1, 0.9)}
    )
    assert share == {}
    assert accounts.balances.tolist() == [10, 10, 0, 0, 10]
    assert kinds(accounts) == {"refund"}


def test_what_nobody_earned_goes_back_after_reimbursement() -> None:
    # Claims 1, 1, 0 (scores halved, halved, as usual): median 1, U = η = 1/2. 15 of 30 for clients 0 and 1:
    # 8 and 7. The provider contributed nothing: the other 15 go to the three payers, 5 each.
    accounts = manager([30])
    usual = [0.8, 0.8, 0.8, np.nan, np.nan]
    share = settle(accounts, NOW, served([0, 1, 2], [3], [-0.2], [0.4, 0.4, 0.8, np.nan, np.nan], usual), {})
    assert share == {0: 0.5}
    assert accounts.balances.tolist() == [13, 12, 5, 0, 0]


def test_who_had_a_seat_and_earned_nothing_forfeits_its_price() -> None:
    # Clients 0, 1 and 2 paid; 0 had the seat and contributed nothing: 30 tokens go to 1 and 2, 15 each.
    accounts = manager([30])
    settle(accounts, NOW, served([0, 1, 2], [0], [0.0]), {})
    assert accounts.balances.tolist() == [0, 15, 15, 0, 0]
    # Nobody else paid: everyone gets its own back.
    accounts = manager([20])
    settle(accounts, NOW, served([0, 1], [0, 1], [0.0, -0.1]), {})
    assert accounts.balances.tolist() == [10, 10, 0, 0, 0]


def test_what_payers_are_used_to_afterwards() -> None:
    # 0.8·1 + 0.2·0.8 = 0.96 of who bid; who did not bid stays, and the first score is taken as it is.
    usual, score = np.array([[1.0], [1.0], [np.nan]]), np.array([[0.8], [0.8], [0.4]])
    bid = np.array([[True], [False], [True]])
    np.testing.assert_allclose(usual_score_after(usual, score, bid), [[0.96], [1], [0.4]])


class TestShortfall:
    def share(self, score: list[float], payers: list[int]) -> tuple[float, list[int]]:
        """U and the balances, when all payers were used to 0.8; client 4 provides and earns the rest."""
        accounts = manager([PRICE * len(payers)])
        found = settle(accounts, NOW, served(payers, [4], [0.3], score, [0.8] * 5), {})
        return found[0], accounts.balances.tolist()

    def test_nobody_misses_anything(self) -> None:
        assert self.share([0.8, 0.9, 0.8, 0.8, 0.8], [0, 1, 2, 3]) == (0.0, [0, 0, 0, 0, 40])

    def test_the_claim_of_a_minority_moves_no_tokens(self) -> None:
        # The claims 1, 0, 0 have the median 0, however bad the one is said to be.
        assert self.share([0.0, 0.8, 0.9, 0.8, 0.8], [0, 1, 2]) == (0.0, [0, 0, 0, 0, 30])

    def test_the_median_claim_decides_and_only_who_missed_something_gets_it(self) -> None:
        # 0.76 is 5 % below 0.8, half of γ. Claims 1, 1/2, 0: U = 1/2·1/2 = 1/4, 7.5 of 30 → 8 for clients 0
        # and 1; 22 are left for the provider.
        share, balances = self.share([0.0, 0.76, 0.8, 0.8, 0.8], [0, 1, 2])
        assert share == pytest.approx(0.25)
        assert balances == [4, 4, 0, 0, 22]
