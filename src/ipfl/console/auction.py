"""One round in detail: who bid, who had a seat and why, the pools, and what happened."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from ipfl.console.answers import ClusterRound, Participant, RoundDetail, RoundEvent
from ipfl.ledger.reader import Reader
from ipfl.market.market_rows import Transfer

MAX_EVENTS = 50
SEAT_REASONS = {"performance": "bid, and chosen by contribution", "random": "chosen at random, to explore"}
"""`Seat.how` in words, in a round with bids."""
AT_RANDOM = "chosen at random"
"""In a round without any: nobody was asked what it wants."""


class RankedContribution(NamedTuple):
    """The rank of a client's contribution in its cluster and round."""

    psi: float | None
    place: int
    of: int


def round_detail(
    reader: Reader, names: Mapping[int, str], round: int, offset: int, limit: int
) -> RoundDetail | None:
    """A round with a part of its participants; None if it is not posted.

    Args:
        reader: The run.
        names: Of its clients, if they have names.
        round: Its number.
        offset: Participants before the first one that is told.
        limit: How many are told.
    """
    posted = reader.posted(round) if round >= 0 else None
    if posted is None:
        return None
    line = reader.line(posted)
    seated = {(seat.client, seat.cluster): seat for seat in line.get("seats", ())}
    wishes = {(bid.client, bid.cluster): bid.rank + 1 for bid in line.get("bids", ())}
    pairs = sorted({*seated, *wishes})
    shown = pairs[offset : offset + limit]
    ranked = places(reader, {round}, {client for client, _ in shown})
    amounts = _amounts(line.get("transfers", ()))
    participants = []
    for client, cluster in shown:
        seat, place = seated.get((client, cluster)), ranked.get((round, client, cluster))
        participants.append(
            Participant(
                client=client,
                name=names.get(client),
                cluster=cluster,
                wish=wishes.get((client, cluster)),
                seat=None if seat is None else seat.how,
                why=_why(None if seat is None else seat.how, has_bids=bool(wishes)),
                delivered=None if seat is None else bool(seat.delivered),
                **({} if place is None else place._asdict()),
                **amounts[client, cluster],
            )
        )
    events = [
        RoundEvent(kind=kind, client=who, name=names.get(who), text=text)
        for kind, who, text in line.get("events", ())
    ]
    return RoundDetail(
        round=round,
        rolled_back=bool(line.get("rolled_back")),
        clusters=_clusters(line),
        total=len(pairs),
        offset=offset,
        participants=participants,
        events=events[:MAX_EVENTS],
        event_count=len(events),
    )


def _amounts(moved: Iterable[Transfer]) -> dict[tuple[int, int], Counter[str]]:
    """Tokens that a client paid and got, by client and cluster."""
    names = {"refund": "refunded", "reimbursement": "reimbursed", "reward": "earned"}
    found: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for transfer in moved:
        name = "paid" if transfer.source >= 0 else names.get(transfer.kind)
        if name is not None:
            found[transfer.client, transfer.cluster][name] += transfer.amount
    return found


POOL_SUMS = {
    "fee": "paid",
    "allowance": "added",
    "refund": "refunded",
    "reimbursement": "reimbursed",
    "reward": "rewarded",
}
"""Kind of a transfer → what it is to the pool of its cluster."""


def _clusters(line: Mapping[str, Any]) -> list[ClusterRound]:
    """Bids, seats and the pool of each cluster."""
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for bid in line.get("bids", ()):
        sums[bid.cluster]["bids"] += 1
    for seat in line.get("seats", ()):
        sums[seat.cluster].update(seats=1, by_lot=seat.how == "random", delivered=bool(seat.delivered))
    for transfer in line.get("transfers", ()):
        if transfer.cluster >= 0 and transfer.kind in POOL_SUMS:
            sums[transfer.cluster][POOL_SUMS[transfer.kind]] += transfer.amount
    return [ClusterRound(cluster=cluster, **sums[cluster]) for cluster in sorted(sums)]


def _why(seat: str | None, *, has_bids: bool) -> str:
    """The outcome of a round for a client, in words."""
    if seat is None:
        return "bid, no seat"
    return SEAT_REASONS[seat] if has_bids or seat != "random" else AT_RANDOM


def places(
    reader: Reader, in_rounds: Collection[int], who: Collection[int]
) -> dict[tuple[int, int, int], RankedContribution]:
    """(round, client, cluster) → rank of the contribution, in the order in which the market pays."""
    rows = reader.connection.execute(PLACES, [json.dumps([*in_rounds]), json.dumps([*who])])
    return {(round, client, cluster): RankedContribution(*place) for round, client, cluster, *place in rows}


PLACES = """
SELECT * FROM (
  SELECT round, client, cluster, psi,
    row_number() OVER (
      PARTITION BY round, cluster ORDER BY psi IS NULL, psi DESC, omega DESC, client DESC
    ),
    count(*) OVER (PARTITION BY round, cluster)
  FROM contributions WHERE round IN (SELECT value FROM json_each(?))
) WHERE client IN (SELECT value FROM json_each(?))"""
