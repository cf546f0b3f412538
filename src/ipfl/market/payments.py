"""The token manager: auction, seats, reimbursement and rewards of one round (section Token Manager).

In the order of a round, per cluster k with price τ_p:

1. `auction`    Eq. consumer_cost: τ_i ← τ_i − τ_p for every bid, into escrow.
2. `charge`     consumers pay into the pool, all others get their bids back. Consumers are those with a seat,
                Eq. update_available_tokens: τ_ar = (N_p + N_r)·τ_p; by `ipfl-plus` everyone who was sent
                models in this round, Algorithm 1's "bid payments from all willing clients".
3. `refund`     seats whose training was lost through no fault of the client's.
4. `utility` or `shortfalls`: which share U_k of the pool is owed to consumers; `reimburse`,
                Eq. reimbursement, pays it. Printed as a deduction from every client it would destroy
                tokens; the text says what is meant, and since the reward pool shrinks by as much it is
                the penalty on the providers at the same time.
5. `subsidise`  beyond the paper: new tokens for the pool, so that training pays beyond what consumers pay.
6. `reward`     Eq. reward_distribution: the rest of the pool by rank. The pool is empty again.

One price and one opening balance for all: section Fairness, "Opportunity fairness".
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ipfl.core import NO_CLUSTER
from ipfl.errors import InputError
from ipfl.market.bank import ISSUER, Bank, Kind, Transfers, TransferTable, pool, post
from ipfl.market.market_arrays import Bools, Floats, Ints

MAX_TOKENS = 2**62
"""Largest sum that may be issued: half of what an int64 holds."""


def check_rules(price: int, opening: int, eta: float, gamma: float) -> None:
    """Refuses settings of a market that cannot work.

    Raises:
        InputError: a price below 1, an opening balance below the price, η or γ outside [0, 1].
    """
    _check_price(price)
    if opening < price:
        raise InputError(f"opening balance {opening} is below the price {price}: nobody could ever bid")
    for name, value in (("eta", eta), ("gamma", gamma)):
        if not 0 <= value <= 1:
            raise InputError(f"{name} must be between 0 and 1, not {value}")


def open_accounts(n: int, k: int, opening: Ints | int) -> tuple[Bank, Transfers]:
    """A bank of n clients and k clusters in which every client was issued its opening balance.

    It is the same for all, unless clients bring balances along from an earlier run.
    """
    empty = Bank(np.zeros(n, np.int64), np.zeros(k, np.int64), np.zeros(k, np.int64), 0)
    _check_issue(empty, opening, n)
    client = np.arange(n, dtype=np.int32)
    transfers = Transfers.of(Kind.OPEN, ISSUER, client, opening, NO_CLUSTER, client)
    return post(empty, transfers), transfers


def subsidise(bank: Bank, cluster: int, providers: Ints, amount: int) -> tuple[Bank, Transfers]:
    """Issues `amount` into the pool of a cluster for each provider that earns there.

    What consumers pay is all that providers can earn, so together they gain nothing; who has a cost of
    training would rather keep the models that it has. The subsidy is what the work is worth to the server.
    """
    _check_issue(bank, amount, len(providers))
    issued = Transfers.of(
        Kind.ALLOWANCE, ISSUER, pool(np.array(cluster)), amount, cluster, np.sort(providers)
    )
    return post(bank, issued), issued


def affordable_bids(
    balances: Ints, bid_ranks: Ints, price: int, bidders: Bools | None = None
) -> NDArray[np.bool_]:
    """(N, K) the bids that can be paid: of each client the most wanted; see `auction` for the arguments."""
    paid = bid_ranks >= 0
    if bidders is not None:
        paid &= bidders[:, None]
    affordable = balances // price
    poor = np.flatnonzero(affordable < paid.shape[1])  # nobody else can have bid beyond their means
    poor = poor[paid[poor].sum(axis=1) > affordable[poor]]
    if len(poor):
        ranks = np.where(paid[poor], bid_ranks[poor], np.iinfo(bid_ranks.dtype).max)
        place = ranks.argsort(axis=1, kind="stable").argsort(axis=1)
        paid[poor] &= place < affordable[poor, None]
    return paid


def auction(
    bank: Bank, bid_ranks: Ints, price: int, bidders: Bools | None = None
) -> tuple[Bank, TransferTable, Bools]:
    """Eq. consumer_cost: moves τ_p per bid from the client to the escrow of the cluster.

    Args:
        bank: The accounts.
        bid_ranks: (N, K) rank of each bid within the client's row, lowest = most wanted; −1 = no bid.
        price: τ_p.
        bidders: (N,) whose bids count; None: everyone's.

    Returns:
        Bank, transfers, and (N, K) which bids were paid: the most wanted that the client can afford.
    """
    _check_price(price)
    paid = affordable_bids(bank.balances, bid_ranks, price, bidders)
    bids = TransferTable(Kind.BID, "client", "escrow", price, paid)
    return post(bank, bids), bids, paid


def charge(
    bank: Bank, paid: Bools, selected: Bools, explorers: Bools, price: int, served: Bools
) -> tuple[Bank, list[Transfers | TransferTable]]:
    """Consumers pay into the pools of their clusters; all other bids are refunded.

    A seat is paid for in any case (Eq. update_available_tokens), by explorers too: from escrow if they had
    bid for that cluster, else straight from their balance.

    Args:
        bank: The accounts after the auction.
        paid: (N, K) bids in escrow.
        selected: (N, K) bidders that got a seat (N_p).
        explorers: (N, K) clients seated at random (N_r).
        price: τ_p.
        served: (N,) clients that pay for all their bids, seat or no seat.

    Raises:
        ValueError: a seat without a bid, two seats in one, or an explorer that cannot pay.
    """
    if (selected & ~paid).any():
        raise ValueError("a bidder was selected whose bid is not in escrow")
    if (selected & explorers).any():
        raise ValueError("a client was seated twice in one cluster")
    seats = selected | explorers
    due = seats | served[:, None]
    is_refunded = paid & ~due
    has_refunds = bool(is_refunded.any())
    # Few, so that finding them in one long row is quicker than row by row.
    client, cluster = np.divmod(np.flatnonzero(explorers & ~paid), paid.shape[1])
    moved: list[Transfers | TransferTable] = [
        TransferTable(Kind.FEE, "escrow", "pool", price, paid & due if has_refunds else paid),
        Transfers.of(Kind.FEE, client, pool(cluster), price, cluster, client),
    ]
    if has_refunds:  # last: nobody takes a seat with tokens that still lie in escrow for another one
        moved.append(TransferTable(Kind.REFUND, "escrow", "client", price, is_refunded))
    for step in moved:
        bank = post(bank, step)
    return bank, moved


def refund(bank: Bank, payments: Bools, price: int) -> tuple[Bank, TransferTable]:
    """Refunds (N, K) payments from the pools."""
    refunds = TransferTable(Kind.REFUND, "pool", "client", price, payments)
    return post(bank, refunds), refunds


def utility(accuracy: float, best: float | None, eta: float, gamma: float) -> float:
    """Eq. reimbursement_utility: U_k = η·(γ − clip((Acc_kr − Acc_kmax)/Acc_kmax, 0, γ))/γ ∈ [0, η].

    Args:
        accuracy: Acc_kr, mean accuracy of the round's cluster model on its clients' own data.
        best: Acc_kmax over earlier rounds; None or NaN in the first one, in which nothing is owed.
        eta: Largest share of the pool that is returned.
        gamma: Relative improvement from which on nothing is returned; 0: any improvement will do.

    Returns:
        The share of the pool to return. 0 if the accuracy is unknown (NaN): no claim without evidence.
    """
    if best is None or math.isnan(best) or math.isnan(accuracy):
        return 0.0
    gain = accuracy - best
    if gain <= 0:
        return eta
    if gamma == 0 or best == 0:
        return 0.0  # the limits of the formula: an improvement beyond any γ
    return eta * (gamma - min(gain / best, gamma)) / gamma


def shortfalls(score: Floats, usual: Floats, gamma: float) -> NDArray[np.float64]:
    """How far scores fell short of what each consumer is used to: clip((usual − score)/usual/γ, 0, 1).

    Args:
        score: Score of a cluster's model on each consumer's own points, in this round.
        usual: The same, smoothed over its earlier rounds; NaN: it has none, and no claim.
        gamma: Relative loss from which on it is a whole one; 0: any loss is.
    """
    known = np.isfinite(score) & np.isfinite(usual) & (usual > 0)
    lost = np.asarray(usual - score, np.float64)
    np.divide(lost, usual, out=lost, where=known)  # in place: a column of a million rows
    lost[~known] = 0.0
    if gamma == 0:
        return np.asarray(lost > 0, np.float64)
    lost /= gamma
    return np.clip(lost, 0.0, 1.0, out=lost)


def reimburse(bank: Bank, cluster: int, payers: Ints, share: float) -> tuple[Bank, Transfers]:
    """Eq. reimbursement: the share U_k of the pool goes back to consumers, equally.

    The sum is rounded to the nearest token; single tokens left over go to the lowest client ids.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"cannot return a share of {share}")
    if not len(payers):
        return bank, Transfers.concat()
    total = math.floor(Fraction(share) * int(bank.pool[cluster]) + Fraction(1, 2))
    ascending = np.sort(payers, kind="stable")  # the kind that is quick with what is sorted already
    return _pay_out(bank, Kind.REIMBURSEMENT, cluster, ascending, total)


def ranks(psi: Floats, participation: Ints, clients: Ints) -> NDArray[np.int64]:
    """`sort(ψ_ki, Ω_ki)`: rank 1 (least) to n of each provider; non-finite ψ below all.

    Equal ψ: who took part more often stands above; equal Ω too: the higher client id.
    """
    known = np.where(np.isfinite(psi), psi, -np.inf)
    rank = np.empty(len(clients), np.int64)
    rank[np.lexsort((clients, participation, known))] = np.arange(1, len(clients) + 1)
    return rank


def reward(
    bank: Bank,
    cluster: int,
    providers: Ints,
    psi: Floats,
    participation: Ints,
    payers: Ints,
) -> tuple[Bank, Transfers]:
    """Eq. reward_distribution: the n providers share what is left in the pool by rank.

    Rank a gets a/(n(n+1)/2) of it: the printed N_r is n here, as only then does the pool come out even.

    Args:
        bank: The accounts after reimbursement.
        cluster: k.
        providers: (n,) clients that earn.
        psi: (n,) contributions ψ_ki of the providers.
        participation: (n,) Ω_ki, rounds each took part in the cluster.
        payers: Who gets the pool back, equally, if nobody earns it.

    Returns:
        Bank with an empty pool, and transfers.
    """
    left = int(bank.pool[cluster])
    if len(providers):
        order = np.argsort(providers)
        rank = ranks(psi, participation, providers)
        return _pay_out(bank, Kind.REWARD, cluster, providers[order], left, rank[order])
    if left and not len(payers):
        raise ValueError(f"pool {cluster} holds {left} tokens, but nobody to give them to")
    return _pay_out(bank, Kind.REFUND, cluster, np.sort(payers), left)


def split_tokens(total: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Splits whole tokens in proportion to whole weights, by largest remainder, ties to the earlier entry.

    Exact: q, r = divmod(total, Σw), so that w·total/Σw = w·q + w·r/Σw and no product outgrows an int64.
    """
    if not len(weights):
        return np.zeros(0, np.int64)
    whole = int(weights.sum())
    if weights.min() < 0 or whole <= 0 or int(weights.max()) * whole >= 2**63:
        raise ValueError("weights must not be negative, all zero or too large")
    quotient, rest = divmod(total, whole)
    base, remainder = np.divmod(weights * rest, whole)
    base += weights * quotient
    lucky = np.argsort(-remainder, kind="stable")[: total - int(base.sum())]
    base[lucky] += 1
    return base


def _pay_out(
    bank: Bank, kind: Kind, cluster: int, clients: Ints, total: int, weights: NDArray[np.int64] | None = None
) -> tuple[Bank, Transfers]:
    """Pays `total` out of the pool to clients in ascending id; equally without weights."""
    if not total:
        return bank, Transfers.concat()
    amounts = split_tokens(total, np.ones(len(clients), np.int64) if weights is None else weights)
    some = amounts > 0
    source = pool(np.array(cluster))
    transfers = Transfers.of(kind, source, clients[some], amounts[some], cluster, clients[some])
    return post(bank, transfers), transfers


def _check_issue(bank: Bank, amount: Ints | int, n: int) -> None:
    """Refuses amounts, one for each of n clients or the same for all, that are not tokens or too many."""
    amounts = [amount] if isinstance(amount, int) else amount.tolist()
    each = n // len(amounts) if amounts else 0
    if min(amounts, default=0) < 0 or bank.issued + each * sum(amounts) > MAX_TOKENS:
        raise InputError(
            f"cannot issue {amount} tokens for each of {n} clients (from 0 to {MAX_TOKENS} in all)"
        )


def _check_price(price: int) -> None:
    if price < 1:
        raise InputError(f"the price must be a whole number of tokens from 1 up, not {price}")
