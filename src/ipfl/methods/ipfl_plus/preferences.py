"""What a client wants: importance weights and bids (Algorithm 2, ClientPreferences).

All but the query itself runs at the client, on its own data; the server sees bids and hit counts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Ask, ClientId, Fact, Record
from ipfl.core.replies import NonNegative, ReplySchema, Whole, list_of
from ipfl.market.market_arrays import Floats
from ipfl.methods.ipfl_plus.mixing import convex

THRESHOLD_TOLERANCE = 1e-6
"""Importance that misses the threshold by less than float32 resolves passes: K times 1/K all reach 1/K."""


def preference_query(
    offer: Record,
    entitled: Mapping[ClientId, bool],
    accounts: Mapping[ClientId, Mapping[str, Fact]],
) -> Ask:
    """Asks clients for their bids.

    Args:
        offer: The cluster models, their numbers and their mean accuracies, and on how many `points` to score
            them at most; the same for all.
        entitled: Whom to ask, and whether it gets the models.
        accounts: What each of them is told of its own account: `balance`, `price`, and for each cluster of
            the offer the `seats` it has had there, the `net` tokens that they brought, and the `importance`
            that its last answer gave it.
    """
    clusters: list[int] = offer.facts["clusters"]
    to = {}
    for client, gets_models in entitled.items():
        to[client] = Record(offer.params if gets_models else {}, {**offer.facts, **accounts[client]})

    def is_possible(facts: Mapping[str, Fact]) -> bool:
        bids, hits = facts["bids"], facts["hits"]
        return len({*bids}) == len(bids) and {*bids} <= {*clusters} and max(hits, default=0) <= facts["n"]

    def answer(sent: Record) -> dict[str, Any]:
        hits = list_of(NonNegative, len(clusters) if sent.params else 0)
        return {"bids": list[Whole], "hits": hits, "n": Whole}

    return Ask("preference", to, ReplySchema(answer, rule=is_possible))


def importance_weights(accuracy: Floats, means: Floats) -> NDArray[np.float64]:
    """Eq. importance_weights: υ_ik = n_ik / n_k, normalised over k, for one client i.

    n_ik is the number of the client's points that model k gets right, n_k = Σ_j n_jk over the clients
    asked, so that the weight says how much the client matters to cluster k relative to the others. With
    n_ik = accuracy_ik·|D_i| and n_k = means_k·(points of all clients asked), the two numbers of points
    do not depend on k and drop out when the row is normalised: accuracy and mean accuracy are enough.

    Args:
        accuracy: (K,) accuracy (or mean probability of the true class) of each model on the client's points.
        means: (K,) mean accuracy of each cluster over the last query; ones before the first.

    Returns:
        (K,) υ_i, which sums to 1: uniform if no model gets anything right. An accuracy that is not a
        positive number counts as 0; a mean that is none as the average of the others.
    """
    hits = np.where(np.isfinite(accuracy) & (accuracy > 0), accuracy, 0.0)
    known = np.isfinite(means) & (means > 0)
    typical = float(means[known].mean()) if known.any() else 1.0
    return convex(hits / np.where(known, means, typical))


def choose_bids(
    importance: Floats, threshold: float | None = None, returns: Floats | None = None, feedback: float = 0.1
) -> list[int]:
    """P_B of Algorithm 2: the clusters the client bids for, most wanted first.

    Preferred is every cluster with υ_ik ≥ T_h, and the one with the largest υ_ik in any case. A preferred
    cluster is bid for under individual rationality: if the expected net return is not negative or unknown, or
    if it has appeal. Appeal has the cluster with the client's largest υ_ik: the model that counts most when
    it personalizes is worth the price.

    Args:
        importance: (K,) row-normalised υ_i.
        threshold: T_h; None: 1/K.
        returns: (K,) the client's own mean net return per seat in units of the price (see
            `mean_returns`), NaN where it never had one; None: nowhere.
        feedback: Incentive feedback; score = υ_k + feedback·clip(return_k, −1, 1)/K decides the order.

    Returns:
        Cluster numbers; equal scores in ascending order.
    """
    k = len(importance)
    returns = np.full(k, np.nan) if returns is None else returns
    appealing = np.arange(k) == np.argmax(importance)
    preferred = importance >= (1 / k if threshold is None else threshold) - THRESHOLD_TOLERANCE
    rational = ~(returns < 0)
    expected = np.clip(np.nan_to_num(returns, nan=0.0), -1, 1)
    order = np.argsort(-(importance + feedback * expected / k), kind="stable")
    return [int(cluster) for cluster in order if appealing[cluster] or (preferred & rational)[cluster]]


def mean_returns(seats: Sequence[int], net: Sequence[int], price: int) -> NDArray[np.float64]:
    """(K,) a client's mean net return per seat in each cluster, in units of the price; NaN without a seat.

    Args:
        seats: Seats that it has had in each cluster, ever. Totals: a lost answer counts nothing twice.
        net: What they brought in all: reimbursed + earned − paid, in tokens.
        price: τ_p.
    """
    count = np.asarray(seats, np.float64)
    return np.where(count > 0, np.asarray(net, np.float64) / price / np.maximum(count, 1), np.nan)
