"""The rules of the market as functions of numbers: who can pay, what is owed, how a pool is shared."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ipfl.core.arrays import Bools, Floats, Ints


def affordable_bids(
    balances: Ints, bid_ranks: Ints, price: int, bidders: Bools | None = None
) -> NDArray[np.bool_]:
    """(N, K) the bids that can be paid: of each client the most wanted.

    Args:
        balances: (N,) tokens.
        bid_ranks: (N, K) rank of each bid within the client's row, lowest = most wanted; −1 = no bid.
        price: τ_p.
        bidders: (N,) whose bids count; None: everyone's.
    """
    wanted = bid_ranks >= 0 if bidders is None else (bid_ranks >= 0) & bidders[:, None]
    order = np.where(wanted, bid_ranks, np.iinfo(bid_ranks.dtype).max).argsort(axis=1, kind="stable")
    place = order.argsort(axis=1)
    return np.asarray(wanted & (place < (balances // price)[:, None]))


def utility(accuracy: float, best: float, eta: float, gamma: float) -> float:
    """Eq. reimbursement_utility: U_k = η·(γ − clip((Acc_kr − Acc_kmax)/Acc_kmax, 0, γ))/γ ∈ [0, η].

    Args:
        accuracy: Acc_kr, mean accuracy of the round's cluster model on its clients' own data.
        best: Acc_kmax over earlier rounds; NaN in the first one, in which nothing is owed.
        eta: Largest share of the pool that is returned.
        gamma: Relative improvement from which on nothing is returned; 0: any improvement will do.

    Returns:
        The share of the pool to return. 0 if the accuracy is unknown (NaN): no claim without evidence.
    """
    if math.isnan(best) or math.isnan(accuracy):
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
    known = np.isfinite(score) & (usual > 0)
    lost = np.where(known, usual - score, 0.0) / np.where(known, usual, 1.0)
    return np.asarray(lost > 0, np.float64) if gamma == 0 else np.clip(lost / gamma, 0.0, 1.0)


def ranks(psi: Floats, participation: Ints) -> NDArray[np.int64]:
    """`sort(ψ_ki, Ω_ki)`: rank 1 (least) to n of each provider; non-finite ψ below all.

    Equal ψ: who took part more often stands above; equal Ω too: who comes later.
    """
    known = np.where(np.isfinite(psi), psi, -np.inf)
    rank = np.empty(len(known), np.int64)
    rank[np.lexsort((participation, known))] = np.arange(1, len(known) + 1)
    return rank


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
