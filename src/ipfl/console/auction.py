"""One round in detail: who bid, who had a seat and why, the pools, and what happened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, case, func, select, union

from ipfl.console.figures import posted_rounds
from ipfl.console.records import ClusterRound, Participant, RoundDetail, RoundEvent
from ipfl.ledger.reader import Reader
from ipfl.ledger.schema import bids, contributions, seats, transfers

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
    if not 0 <= round < posted_rounds(reader):
        return None
    line = reader.rest(round)
    found = [row for row in line.get("events") or () if isinstance(row, list) and len(row) == 3]
    events = [
        RoundEvent(kind=str(kind), client=who, name=names.get(who), text=str(text))
        for kind, who, text in found[:MAX_EVENTS]
    ]
    total, participants = _participants(reader, names, round, offset, limit)
    return RoundDetail(
        round=round,
        rolled_back=bool(line.get("rolled_back")),
        asked=line.get("clients"),
        bytes_up=line.get("bytes_up"),
        bytes_down=line.get("bytes_down"),
        clusters=_clusters(reader, round),
        total=total,
        offset=offset,
        participants=participants,
        events=events,
        event_count=len(found),
    )


def _clusters(reader: Reader, round: int) -> list[ClusterRound]:
    """Sums per cluster, made by the database."""
    found: dict[int, ClusterRound] = {}

    def of(cluster: int) -> ClusterRound:
        return found.setdefault(cluster, ClusterRound(cluster=cluster))

    def run(query: Select[Any], table: Any) -> Any:
        where = and_(table.c.run_id == reader.run_id, table.c.round == round)
        return reader.connection.execute(query.where(where).group_by(table.c.cluster))

    for cluster, count in run(select(bids.c.cluster, func.count()), bids):
        of(cluster).bids = count
    by_lot = func.sum(case((seats.c.how == "random", 1), else_=0))
    delivered = func.sum(case((seats.c.delivered, 1), else_=0))
    for cluster, count, lot, came in run(select(seats.c.cluster, func.count(), by_lot, delivered), seats):
        one = of(cluster)
        one.seats, one.by_lot, one.delivered = count, int(lot), int(came)
    kinds = {
        "fee": "paid",
        "allowance": "added",
        "refund": "refunded",
        "reimbursement": "reimbursed",
        "reward": "rewarded",
    }
    sums = [func.sum(case((transfers.c.kind == kind, transfers.c.amount), else_=0)) for kind in kinds]
    for cluster, *amounts in run(select(transfers.c.cluster, *sums), transfers):
        if cluster >= 0:
            for name, amount in zip(kinds.values(), amounts, strict=True):
                setattr(of(cluster), name, int(amount))
    for name, value in reader.metrics(round).items():
        key, _, cluster_text = name.rpartition(".")
        if key == "cluster_probe_accuracy" and int(cluster_text) in found:
            found[int(cluster_text)].probe_accuracy = value
    return [found[cluster] for cluster in sorted(found)]


def _participants(
    reader: Reader, names: Mapping[int, str], round: int, offset: int, limit: int
) -> tuple[int, list[Participant]]:
    """Clients that bid or had a seat, one row per cluster; a part of them in ascending client."""

    def pairs(table: Any) -> Select[Any]:
        where = and_(table.c.run_id == reader.run_id, table.c.round == round)
        return select(table.c.client, table.c.cluster).where(where)

    both = union(pairs(bids), pairs(seats)).subquery()
    total = int(reader.connection.scalar(select(func.count()).select_from(both)) or 0)
    page = select(both).order_by(both.c.client, both.c.cluster).offset(offset).limit(limit)
    shown = [(row.client, row.cluster) for row in reader.connection.execute(page)]
    who = {client for client, _ in shown}
    wishes, seated, amounts = _rows(reader, round, who)
    has_bids = reader.connection.execute(pairs(bids).limit(1)).first() is not None
    ranked = places(reader, {round}, who)
    found = []
    for client, cluster in shown:
        seat, place = seated.get((client, cluster)), ranked.get((round, client, cluster))
        is_bid = (client, cluster) in wishes
        found.append(
            Participant(
                client=client,
                name=names.get(client),
                cluster=cluster,
                wish=wishes[client, cluster] + 1 if is_bid else None,
                seat=None if seat is None else seat[0],
                why=_why(None if seat is None else seat[0], has_bids=has_bids),
                delivered=None if seat is None else bool(seat[1]),
                psi=None if place is None else place.psi,
                place=None if place is None else place.place,
                of=None if place is None else place.of,
                **amounts.get((client, cluster), {}),
            )
        )
    return total, found


def _why(seat: str | None, *, has_bids: bool) -> str:
    """The outcome of a round for a client, in words."""
    if seat is None:
        return "bid, no seat"
    return SEAT_REASONS[seat] if has_bids or seat != "random" else AT_RANDOM


def _rows(reader: Reader, round: int, who: Collection[int]) -> tuple[dict[Any, int], dict[Any, Any], Any]:
    """(client, cluster) → rank of the bid; → seat; → sums of the transfers."""

    def run(table: Any, *columns: Any) -> Any:
        where = and_(table.c.run_id == reader.run_id, table.c.round == round, table.c.client.in_(who))
        return reader.connection.execute(select(table.c.client, table.c.cluster, *columns).where(where))

    wishes = {(client, cluster): rank for client, cluster, rank in run(bids, bids.c.rank)}
    seated = {(c, k): (how, came) for c, k, how, came in run(seats, seats.c.how, seats.c.delivered)}
    amounts: dict[tuple[int, int], dict[str, int]] = {}
    names = {"refund": "refunded", "reimbursement": "reimbursed", "reward": "earned"}
    moved = run(transfers, transfers.c.kind, transfers.c.source, transfers.c.amount)
    for client, cluster, kind, source, amount in moved:
        name = "paid" if source >= 0 else names.get(kind)
        if name:
            sums = amounts.setdefault((client, cluster), {})
            sums[name] = sums.get(name, 0) + amount
    return wishes, seated, amounts


def places(
    reader: Reader, in_rounds: Collection[int], who: Collection[int]
) -> dict[tuple[int, int, int], RankedContribution]:
    """(round, client, cluster) → rank of the contribution, in the order in which the market pays."""
    c = contributions.c
    order = (c.psi.is_(None), c.psi.desc(), c.omega.desc(), c.client.desc())
    within = (c.round, c.cluster)
    ranked = (
        select(
            c.round,
            c.client,
            c.cluster,
            c.psi,
            func.row_number().over(partition_by=within, order_by=order).label("place"),
            func.count().over(partition_by=within).label("of"),
        )
        .where(c.run_id == reader.run_id, c.round.in_(in_rounds))
        .subquery()
    )
    rows = reader.connection.execute(select(ranked).where(ranked.c.client.in_(who)))
    return {
        (row.round, row.client, row.cluster): RankedContribution(row.psi, row.place, row.of) for row in rows
    }
