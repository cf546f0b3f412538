from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipfl.errors import InputError
from ipfl.market import bank as ledger
from ipfl.market import payments as tokens
from ipfl.market.bank import Bank, Kind, Transfers, post

NOBODY = np.zeros(1, bool)
"""Of a single client: it is not served, and pays for seats only."""


def bank(balances: list[int], pool: list[int], escrow: list[int] | None = None) -> Bank:
    accounts = [np.array(a, np.int64) for a in (balances, escrow or [0] * len(pool), pool)]
    return Bank(*accounts, issued=int(sum(a.sum() for a in accounts)))


def move(kind: Kind, source: int, target: int, amount: int) -> Transfers:
    return Transfers.of(kind, source, target, amount, 0, np.array([0]))


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ((0, 100, 0.5, 0.1), "price must be a whole number of tokens from 1 up"),
        ((10, 9, 0.5, 0.1), "opening balance 9 is below the price 10"),
        ((10, 100, 1.1, 0.1), "eta must be between 0 and 1"),
        ((10, 100, 0.5, -0.1), "gamma must be between 0 and 1"),
        ((10, 100, float("nan"), 0.1), "eta must be"),
    ],
)
def test_rules_that_cannot_work_are_refused(rules: tuple[int, int, float, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        tokens.check_rules(*rules)


def test_rules_at_their_limits_pass() -> None:
    assert tokens.check_rules(1, 1, 0.0, 1.0) is None


def test_everybody_opens_with_the_same() -> None:
    accounts, opened = tokens.open_accounts(3, 2, 100)
    assert accounts.balances.tolist() == [100] * 3
    assert accounts.issued == 300
    assert opened.kind.tolist() == [Kind.OPEN] * 3
    assert opened.source.tolist() == [ledger.ISSUER] * 3


@pytest.mark.parametrize("opening", [-1, 2**61])
def test_what_cannot_be_issued(opening: int) -> None:
    with pytest.raises(InputError, match="cannot issue"):
        tokens.open_accounts(3, 1, opening)


def test_a_poor_client_pays_its_most_wanted_bids_only() -> None:
    # 25 tokens at 10 each: two of three bids, ranks 0 and 4 (only the order of ranks counts).
    accounts, _, paid = tokens.auction(
        bank([25, 9, 30], [0, 0, 0]), np.array([[4, 9, 0], [0, -1, -1], [2, 1, 0]]), 10
    )
    assert paid.tolist() == [[True, False, True], [False] * 3, [True] * 3]
    assert accounts.balances.tolist() == [5, 9, 0]
    assert accounts.escrow.tolist() == [20, 10, 20]


def test_an_explorer_with_a_bid_in_escrow_pays_from_there() -> None:
    table = np.array([[True]])
    accounts, _, paid = tokens.auction(bank([10], [0]), np.array([[0]]), 10)
    accounts, moved = tokens.charge(accounts, paid, ~table, table, 10, NOBODY)
    assert accounts.pool.tolist() == [10]
    fee = Transfers.concat(*moved)
    assert fee.kind.tolist() == [Kind.FEE]
    assert [ledger.account_name(source) for source in fee.source.tolist()] == ["escrow 0"]


def test_seats_that_must_not_be() -> None:
    yes, no = np.array([[True]]), np.array([[False]])
    with pytest.raises(ValueError, match="not in escrow"):
        tokens.charge(bank([10], [0]), no, yes, no, 10, NOBODY)
    with pytest.raises(ValueError, match="twice"):
        tokens.charge(bank([0], [0], [10]), yes, yes, yes, 10, NOBODY)
    with pytest.raises(ValueError, match="overdraft: balance 0"):
        tokens.charge(bank([9], [0]), no, no, yes, 10, NOBODY)


def test_an_explorer_cannot_pay_with_a_bid_that_is_about_to_be_refunded() -> None:
    # Its only 10 tokens are in escrow for cluster 0 when it is seated in cluster 1.
    paid, none, explorer = np.array([[True, False]]), np.zeros((1, 2), bool), np.array([[False, True]])
    with pytest.raises(ValueError, match="overdraft"):
        tokens.charge(bank([0], [0, 0], [10, 0]), paid, none, explorer, 10, NOBODY)


def test_who_is_served_pays_for_all_its_bids() -> None:
    # Both clients bid 10 for both clusters and hold 5 more. Client 0 has a seat in cluster 0 and is served:
    # it pays twice. Client 1 explores cluster 1 and is not served: its bid for cluster 0 goes back.
    paid, none = np.ones((2, 2), bool), np.zeros((2, 2), bool)
    seat, explorer = none.copy(), none.copy()
    seat[0, 0] = explorer[1, 1] = True
    before = bank([5, 5], [0, 0], [20, 20])
    accounts, moved = tokens.charge(before, paid, seat, explorer, 10, np.array([True, False]))
    assert accounts.balances.tolist() == [5, 15]
    assert accounts.pool.tolist() == [10, 20]
    assert not accounts.escrow.any()
    assert Transfers.concat(*moved).kind.tolist() == [Kind.FEE] * 3 + [Kind.REFUND]


def test_who_is_served_pays_no_bid_that_it_could_not_afford() -> None:
    # Client 0 could pay one bid of two: it is served, but nothing else is due.
    accounts, _, paid = tokens.auction(bank([15], [0, 0]), np.array([[1, 0]]), 10)
    none = np.zeros((1, 2), bool)
    accounts, _ = tokens.charge(accounts, paid, none, none, 10, np.array([True]))
    assert accounts.pool.tolist() == [0, 10]
    assert accounts.balances.tolist() == [5]


@pytest.mark.parametrize(
    ("score", "usual", "gamma", "expected"),
    [
        (0.5, float("nan"), 0.1, 0.0),  # used to nothing yet
        (float("nan"), 0.5, 0.1, 0.0),  # did not say
        (0.5, 0.5, 0.1, 0.0),  # as usual
        (0.6, 0.5, 0.1, 0.0),  # better
        (0.475, 0.5, 0.1, 0.5),  # 5 % less = half of γ
        (0.45, 0.5, 0.1, 1.0),
        (0.1, 0.5, 0.1, 1.0),  # more than all cannot be missing
        (0.499, 0.5, 0.0, 1.0),  # γ = 0: any loss is a whole one
        (0.5, 0.5, 0.0, 0.0),
        (0.0, 0.0, 0.1, 0.0),  # used to nothing at all
    ],
)
def test_shortfall_by_hand(score: float, usual: float, gamma: float, expected: float) -> None:
    assert tokens.shortfalls(np.array([score]), np.array([usual]), gamma) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("accuracy", "best", "eta", "gamma", "expected"),
    [
        (0.5, None, 0.5, 0.1, 0.0),  # first round: nothing to compare with
        (0.5, float("nan"), 0.5, 0.1, 0.0),
        (float("nan"), 0.5, 0.5, 0.1, 0.0),  # nobody measured it
        (0.5, 0.5, 0.5, 0.1, 0.5),  # no gain: all of η
        (0.4, 0.5, 0.5, 0.1, 0.5),  # a loss does not cost more than that
        (0.525, 0.5, 0.5, 0.1, 0.25),  # gain 5 % = half of γ: half of η
        (0.6, 0.5, 0.5, 0.1, 0.0),  # gain 20 % ≥ γ
        (0.501, 0.5, 0.5, 0.0, 0.0),  # γ = 0: any gain will do
        (0.5, 0.5, 0.5, 0.0, 0.5),
        (0.1, 0.0, 0.5, 1.0, 0.0),  # from nothing to something
        (0.0, 0.0, 0.5, 1.0, 0.5),
    ],
)
def test_utility_by_hand(
    accuracy: float, best: float | None, eta: float, gamma: float, expected: float
) -> None:
    assert tokens.utility(accuracy, best, eta, gamma) == pytest.approx(expected)


unit = st.floats(0, 1)


@given(unit, st.none() | unit, unit, unit)
def test_utility_is_a_share_up_to_eta(accuracy: float, best: float | None, eta: float, gamma: float) -> None:
    assert 0 <= tokens.utility(accuracy, best, eta, gamma) <= eta


def test_reimbursement_rounds_the_sum_and_favours_low_ids() -> None:
    # 0.35 of 10 tokens is 3.5 → 4 would be the nearest above; 0.35 in binary lies just below, so 3.
    accounts, moved = tokens.reimburse(bank([0] * 4, [10]), 0, np.array([3, 1]), 0.35)
    assert accounts.balances.tolist() == [0, 2, 0, 1]
    assert moved.kind.tolist() == [Kind.REIMBURSEMENT] * 2
    accounts, _ = tokens.reimburse(bank([0] * 4, [10]), 0, np.array([3, 1]), 0.75)  # 7.5 exactly → 8
    assert accounts.balances.tolist() == [0, 4, 0, 4]


def test_reimbursement_of_nobody_and_of_more_than_there_is() -> None:
    accounts = bank([0], [10])
    after, moved = tokens.reimburse(accounts, 0, np.array([], int), 0.5)
    assert after is accounts
    assert len(moved) == 0
    with pytest.raises(ValueError, match=r"share of 1\.5"):
        tokens.reimburse(accounts, 0, np.array([0]), 1.5)


def test_ranks_ties_by_participation_then_id_and_unknown_last() -> None:
    # ψ: NaN and inf below all, ordered by Ω (1 < 2); then the two 0.3, Ω equal, ids 5 < 8; then 0.9.
    psi = np.array([0.3, 0.9, np.nan, 0.3, np.inf])
    rank = tokens.ranks(psi, np.array([4, 1, 1, 4, 2]), np.array([8, 2, 1, 5, 0]))
    assert rank.tolist() == [4, 5, 1, 3, 2]


def test_reward_of_an_unsorted_list_of_providers() -> None:
    # Ranks of clients 2, 0: 1, 2; 9 tokens: 3 and 6.
    accounts, _ = tokens.reward(
        bank([0] * 3, [9]), 0, np.array([2, 0]), np.array([0.1, 0.2]), np.ones(2, int), np.array([1])
    )
    assert accounts.balances.tolist() == [6, 0, 3]


def test_a_pool_nobody_can_claim_is_an_error() -> None:
    nobody = np.array([], int)
    with pytest.raises(ValueError, match="nobody"):
        tokens.reward(bank([0], [9]), 0, nobody, np.array([]), nobody, nobody)
    accounts, moved = tokens.reward(bank([9], [0]), 0, nobody, np.array([]), nobody, nobody)
    assert len(moved) == 0
    assert accounts.balances.tolist() == [9]


def test_split_tokens_by_hand() -> None:
    # 10 by 1 : 2 : 4 = 1.43, 2.86, 5.71: floors 1, 2, 5, the two left over to .86 and .71.
    assert tokens.split_tokens(10, np.array([1, 2, 4])).tolist() == [1, 3, 6]
    assert tokens.split_tokens(5, np.array([1, 1, 1])).tolist() == [2, 2, 1]
    assert tokens.split_tokens(2**61, np.array([1, 3])).tolist() == [2**59, 3 * 2**59]


@given(st.integers(0, 2**60), st.lists(st.integers(0, 10**6), min_size=1, max_size=30).filter(any))
def test_split_tokens_gives_everything_away_and_nobody_is_a_token_off(total: int, weights: list[int]) -> None:
    parts = tokens.split_tokens(total, np.array(weights, np.int64)).tolist()
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - weight * total) < sum(
            weights
        )  # |part − exact| < 1, in whole numbers
    by_weight = sorted(zip(weights, parts, strict=True))
    assert [part for _, part in by_weight] == sorted(parts)  # never less for more weight


@pytest.mark.parametrize("weights", [[-1, 2], [0, 0], [2**40, 2**40]])
def test_weights_nobody_can_share_by(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        tokens.split_tokens(5, np.array(weights, np.int64))


def test_the_bank_refuses_overdrafts_and_negative_amounts() -> None:
    accounts = bank([5], [3])
    with pytest.raises(ValueError, match="overdraft: balance 0 would hold -1"):
        post(accounts, move(Kind.BID, 0, -2, 6))
    with pytest.raises(ValueError, match="overdraft: pool 0 would hold -1"):
        post(accounts, move(Kind.REWARD, -3, 0, 4))
    with pytest.raises(ValueError, match="negative amount"):
        post(accounts, move(Kind.BID, 0, -2, -1))


def test_a_bank_that_does_not_add_up_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="hold 8 tokens, but 9 were issued"):
        dataclasses.replace(bank([5], [3]), issued=9)
    with pytest.raises(ValueError, match="int64"):
        Bank(np.array([1.0]), np.zeros(1, np.int64), np.zeros(1, np.int64), 1)  # type: ignore[arg-type]


def test_posting_leaves_the_old_bank_alone() -> None:
    accounts = bank([5], [3])
    post(accounts, move(Kind.BID, 0, -2, 5))
    assert (accounts.balances.tolist(), accounts.escrow.tolist(), accounts.pool.tolist()) == ([5], [0], [3])


def test_account_names_and_numbers() -> None:
    names = [ledger.account_name(account) for account in (7, -1, -2, -3, -4, -5)]
    assert names == ["client 7", "issuer", "escrow 0", "pool 0", "escrow 1", "pool 1"]
    clusters = np.array([0, 1])
    assert ledger.escrow(clusters).tolist() == [-2, -4]
    assert ledger.pool(clusters).tolist() == [-3, -5]


def test_statement_of_one_cluster() -> None:
    parts = [Transfers.of(Kind.FEE, 0, -3 - 2 * k, 10 + k, k, np.array([0])) for k in (0, 1)]
    moved = Transfers.concat(*parts)
    assert ledger.client_totals(moved, 2).paid.tolist() == [21, 0]
    assert ledger.client_totals(moved, 2, cluster=1).paid.tolist() == [11, 0]


def test_no_transfers_at_all() -> None:
    assert Transfers.concat().rows(np.arange(3)) == ()
