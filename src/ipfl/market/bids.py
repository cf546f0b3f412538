"""Bids as a table of ranks, which rounds compute with, and as rows, which the ledger keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Ask, ClientId, Fact, Record, Replies
from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.core.replies import NonNegative, ReplySchema, Whole, list_of
from ipfl.market.market_rows import Bid

NO_BID = -1
"""In a table of ranks: the client does not bid for the cluster."""


def make_bids(ids: Ints, ranks: Ints, score: Floats, bidders: Bools, served: Bools) -> tuple[Bid, ...]:
    """P_B of the clients that may bid.

    Args:
        ids: (N,) client of each row.
        ranks: (N, K) rank of each bid, 0 = most wanted, `NO_BID`.
        score: (N, K) score of each model on the client's own points, NaN = not known.
        bidders: (N,) who may bid.
        served: (N,) who pays for all its bids.
    """
    places = zip(*np.nonzero((ranks >= 0) & bidders[:, None]), strict=True)
    return tuple(
        Bid(int(ids[i]), int(k), int(ranks[i, k]), finite_or_none(score[i, k]), bool(served[i]))
        for i, k in places
    )


def preference_query(
    offers: Mapping[ClientId, Record], clusters: int, scored: Callable[[Record], int]
) -> Ask:
    """Asks clients which clusters they bid for.

    Args:
        offers: What each of them is sent.
        clusters: K.
        scored: For how many models they say on how many of their `n` points each is right, by their offer.
    """

    def is_possible(facts: Mapping[str, Fact]) -> bool:
        bids, hits = facts["bids"], facts["hits"]
        return (
            len({*bids}) == len(bids) and {*bids} <= {*range(clusters)} and max(hits, default=0) <= facts["n"]
        )

    def answer(sent: Record) -> dict[str, Any]:
        return {"bids": list[Whole], "hits": list_of(NonNegative, scored(sent)), "n": Whole}

    return Ask("preference", offers, ReplySchema(answer, rule=is_possible))


def take_bids(ids: Ints, ranks: NDArray[np.int16], replies: Replies) -> NDArray[np.int16]:
    """The (N, K) ranks with the bids of those that answered instead of their earlier ones."""
    after = ranks.copy()
    for client, reply in replies.items():
        row, wanted = np.searchsorted(ids, client), reply.facts["bids"]
        after[row] = NO_BID
        after[row, wanted] = np.arange(len(wanted))
    return after


def rank_table(ids: Ints, bids: Sequence[Bid], clusters: int) -> NDArray[np.int16]:
    """(N, K) ranks of these bids."""
    table = np.full((len(ids), clusters), NO_BID, np.int16)
    for bid in bids:
        table[np.searchsorted(ids, bid.client), bid.cluster] = bid.rank
    return table


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN: what is not a number is null; and −0 is 0, as databases have it."""
    return float(value) + 0.0 if np.isfinite(value) else None
