"""Whether a run's history is what really happened: sums, replay of every round, hash chain.

Per round, in this order, so that a changed entry is named itself and not only the hash that it breaks:
numbering, replay of auction and rewards, overdraft at every transfer, empty escrow and pools, figures, hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from ipfl.conversation import came_to_nothing
from ipfl.market.ledger import ISSUER, account_name
from ipfl.store.posting import PARTS, anchor, figures, round_hash
from ipfl.store.reading import Posted, Reader
from ipfl.store.replay import Market, told
from ipfl.store.runs import RunStore
from ipfl.store.schema import OPENING


@dataclass(frozen=True)
class Finding:
    """The first thing that is wrong."""

    round: int | None
    """None where it concerns the whole run."""
    sequence: int | None
    """Of the transfer, or of the row that is named; None where it concerns the round as a whole."""
    what: str

    def __str__(self) -> str:
        if self.round is None:
            return self.what
        place = "opening" if self.round == OPENING else f"round {self.round}"
        return (
            f"{place}, entry {self.sequence}: {self.what}"
            if self.sequence is not None
            else f"{place}: {self.what}"
        )


def verify(store: RunStore) -> Finding | None:
    """Checks a whole run as of this moment.

    Returns:
        The first broken thing in the order of the rounds, None if all is well.
    """
    with store.snapshot() as reader:
        return next(findings(store, reader), None)


def findings(store: RunStore, reader: Reader) -> Iterator[Finding]:
    """All that is wrong, the first thing first; what follows it may be its consequence."""
    members = sorted(store.header["clients"])
    if reader.clients() != members:
        yield Finding(None, None, "the clients of the run are not those of its header")
    rules = store.header.get("rules")
    try:
        market = Market(rules, members) if rules else None
    except (TypeError, ValueError, OverflowError) as error:
        yield Finding(None, None, f"the rules in the run's header are those of no market: {error}")
        return
    hash, funds = anchor(store.name, store.header), dict.fromkeys(members, 0)
    expected = OPENING
    for posted in reader.all_posted():
        if posted.round == 0 and market is None:
            expected = 0  # without a market nothing need be opened
        if posted.round != expected:
            yield Finding(expected, None, "missing")
        expected = posted.round + 1
        yield from _round(reader, posted, market, funds, hash, store.header.get("min_clients"))
        hash = posted.hash
    held = reader.held()
    for account in sorted({*held, *funds}):
        if held.get(account, 0) != funds.get(account, 0):
            yield Finding(
                None,
                None,
                f"{account_name(account)} is kept at {held.get(account, 0)} tokens, "
                f"but its transfers come to {funds.get(account, 0)}",
            )


def _round(
    reader: Reader,
    posted: Posted,
    market: Market | None,
    funds: dict[int, int],
    hash: str,
    min_clients: int | None,
) -> Iterator[Finding]:
    """What is wrong with a round; `funds` are the accounts before it and are carried on through it."""
    try:
        line = reader.line(posted)
        said = figures(line)
    except (ValueError, AttributeError) as error:
        yield Finding(posted.round, None, f"the line is not one that a round can report: {error}")
        return
    for key, part in PARTS.items():
        yield from _numbering(reader, posted.round, key, part.table, key in line)
    transfers: Sequence[Sequence[Any]] = line.get("transfers") or ()
    if market is not None:
        replayed = market.opening() if posted.round == OPENING else market.round(line)
        if replayed.complaint:  # it broke off: what it got to must agree all the same
            yield from _compare(posted.round, transfers[: len(replayed.transfers)], replayed.transfers)
            yield Finding(posted.round, None, replayed.complaint)
        yield from _compare(posted.round, transfers, replayed.transfers)
    yield from _void(posted.round, line, min_clients)
    yield from _fold(posted.round, transfers, funds)
    yield from _sums(posted.round, funds)
    if said != reader.metrics(posted.round):
        yield Finding(posted.round, None, "the metrics are not the figures of the round's line")
    if posted.previous != hash:
        yield Finding(posted.round, None, "the hash of the round before is not the one recorded here")
    if round_hash(posted.previous, posted.round, posted.checkpoint, line) != posted.hash:
        yield Finding(posted.round, None, "what is recorded does not have the hash that was recorded with it")


def _void(round: int, line: Mapping[str, Any], min_clients: int | None) -> Iterator[Finding]:
    """A round is void where too few of those who were to train delivered; then nobody counts as having."""
    seats: Sequence[Sequence[Any]] = line.get("seats") or ()
    delivered = {client for client, _, _, did in seats if did}
    if line.get("void") and delivered:
        yield Finding(round, None, f"the round is void, but client {min(delivered)} is said to have trained")
    if not line.get("void") and min_clients is not None and came_to_nothing(seats, min_clients):
        yield Finding(
            round, None, f"only {len(delivered)} of at least {min_clients} clients delivered: it must be void"
        )


def _numbering(reader: Reader, round: int, key: str, table: Table, reported: bool) -> Iterator[Finding]:
    """Rows of a table are numbered from 0 without gaps, and are there only if the line speaks of them."""
    count, highest = reader.extent(table, round)
    if count and not reported:
        yield Finding(round, highest, f"is among the {key}, of which the round's line knows nothing")
    if count <= highest:
        there = {sequence for sequence, *_ in reader.numbered(table, round)}
        first = next(number for number in range(highest) if number not in there)
        yield Finding(round, first, f"missing from the {key}")


def _fold(round: int, transfers: Sequence[Sequence[Any]], funds: dict[int, int]) -> Iterator[Finding]:
    """Carries the accounts through the transfers, one after the other."""
    for sequence, (_, source, target, amount, _, _) in enumerate(transfers):
        if amount < 0:
            yield Finding(round, sequence, f"a transfer of {amount} tokens")
        funds[source] = funds.get(source, 0) - amount
        funds[target] = funds.get(target, 0) + amount
        if source != ISSUER and funds[source] < 0:
            yield Finding(round, sequence, f"{account_name(source)} would hold {funds[source]} tokens")


def _compare(
    round: int, recorded: Sequence[Sequence[Any]], replayed: Sequence[Sequence[Any]]
) -> Iterator[Finding]:
    """The first entry in which two lists of transfers differ."""
    for sequence in range(max(len(recorded), len(replayed))):
        here = list(recorded[sequence]) if sequence < len(recorded) else None
        right = list(replayed[sequence]) if sequence < len(replayed) else None
        if here != right:
            yield Finding(round, sequence, f"recorded is {told(here)}; the replay gives {told(right)}")


def _sums(round: int, funds: Mapping[int, int]) -> Iterator[Finding]:
    """Between rounds escrows and pools are empty: transfers have two sides, so clients hold all tokens."""
    for account, balance in funds.items():
        if account < ISSUER and balance:
            yield Finding(round, None, f"{account_name(account)} still holds {balance} tokens")
