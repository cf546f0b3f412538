"""What happens to the pools after training: consumers are reimbursed, providers rewarded.

The method's round and the replay of its ledger both settle here, one from what it knows, one from the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.market.bank import TokenManager
from ipfl.market.payments import shortfalls, utility

USUAL_DECAY = 0.8
"""Weight of the past in the score that a client is used to."""


@dataclass(frozen=True)
class SettlementRule:
    """Who gets what of a pool; the settings of the same names."""

    settlement: Literal["shortfall", "printed"]
    """printed: by the cluster's accuracy, and all providers earn; shortfall: consumers that got less than
    they are used to, and contributions above 0."""
    eta: float
    gamma: float
    subsidy: int = 0
    """In tokens."""


@dataclass(frozen=True)
class Served:
    """Who paid, who delivered, and what consumers got; (N, K) tables."""

    payments: Bools
    """What lies in the pools, a price each."""
    seats: Bools
    delivered: Bools
    psi: Mapping[int, Floats]
    """ψ_ki of the providers of each cluster, in ascending client id."""
    omega: Ints
    """Ω_ki before the round."""
    score: Floats
    """Score of each model on the client's own points in this round; NaN = not known."""
    usual_score: Floats
    """The same, smoothed over earlier rounds."""


def settle(
    manager: TokenManager, rule: SettlementRule, served: Served, accuracy: Mapping[int, tuple[float, float]]
) -> dict[int, float]:
    """Empties all pools.

    Args:
        manager: The accounts.
        rule: Who gets what.
        served: Who paid and delivered.
        accuracy: By cluster Acc_kr and Acc_kmax, NaN where unknown: for the printed rule.

    Returns:
        U_k of every cluster that had a provider.
    """
    shares = {}
    for k in range(served.payments.shape[1]):
        payers, providers = np.flatnonzero(served.payments[:, k]), np.flatnonzero(served.delivered[:, k])
        if not len(payers):
            continue
        psi = served.psi.get(k, np.full(len(providers), np.nan))
        if not len(providers):
            share, owed = 0.0, payers
        elif rule.settlement == "printed":
            share, owed = utility(*accuracy[k], rule.eta, rule.gamma), payers
        else:
            missing = shortfalls(served.score[payers, k], served.usual_score[payers, k], rule.gamma)
            # By the median, so that no single claim of a bad score moves any tokens.
            share, owed = rule.eta * float(np.median(missing)), payers[missing > 0]
        manager.reimburse(k, owed, share)
        earning = ~(psi <= 0) | (rule.settlement == "printed")
        if earning.any():
            rows = providers[earning]
            manager.subsidise(k, rows, rule.subsidy)
            manager.reward(k, rows, psi[earning], served.omega[rows, k] + 1)
        else:
            manager.return_pool(k, _refunded(served, rule, k, payers))
        if len(providers):
            shares[k] = share
    return shares


def _refunded(served: Served, rule: SettlementRule, cluster: int, payers: Ints) -> Ints:
    """The clients that a pool without earners goes back to: those who paid.

    But for those who had a seat, where updates came and none of them was worth anything; unless nobody else
    paid.
    """
    others = payers[~served.seats[payers, cluster]]
    was_worth_nothing = rule.settlement == "shortfall" and served.delivered[:, cluster].any()
    return others if was_worth_nothing and len(others) else payers


def usual_score_after(usual: Floats, score: Floats, bid: Bools) -> NDArray[np.float64]:
    """(N, K) the smoothed scores, after a round in which clients bid on these scores."""
    known = bid & np.isfinite(score)
    blended = np.where(np.isnan(usual), score, USUAL_DECAY * usual + (1 - USUAL_DECAY) * score)
    return np.where(known, blended, usual)
