"""Verifies a run's history: sums, a replay of every round, the hash chain, signatures.

Per round, in this order, so that a changed entry is named itself and not only the hash that it breaks:
numbering, replay of auction and rewards, overdraft at every transfer, empty escrow and pools, metrics, hash,
signature. What the run left in its folder is checked elsewhere (`ipfl.keep.run_audit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Table

from ipfl.core import ClientId, Fact, Seat, Transfer, is_below_quorum
from ipfl.ledger.findings import Finding as Finding
from ipfl.ledger.lines import metrics_of, round_hash
from ipfl.ledger.reader import PostedRound, Reader, parse_files
from ipfl.ledger.schema import OPENING, row_tables
from ipfl.ledger.signatures import SignatureCheck
from ipfl.ledger.store import RunStore
from ipfl.market.bank import ISSUER, account_name, describe_transfer


class ReplayedRound(NamedTuple):
    """What a round must have moved."""

    transfers: tuple[Transfer, ...]
    complaint: str | None = None
    """Why the record cannot be true; None if nothing but the transfers can be wrong."""


class Replay(Protocol):
    """Computes a market's transfers again from what is recorded; keeps its state from round to round."""

    def opening(self) -> ReplayedRound:
        """What the opening must have moved."""
        ...

    def round(self, line: Mapping[str, Any]) -> ReplayedRound:
        """What a round must have moved, given its line."""
        ...


MakeReplay = Callable[[Mapping[str, Fact], Sequence[ClientId]], Replay]
"""Makes the replay of a run from the rules of its market and its clients."""


def verify(
    store: RunStore,
    make_replay: MakeReplay | None = None,
    *,
    public_key: str | None = None,
    expect: str | None = None,
) -> Finding | None:
    """Checks a whole run as of this moment.

    Args:
        store: The run.
        make_replay: Makes the replay of its market, such as `IPFL.replay`; needed if its header has rules.
        public_key: Who must have signed it; None: anybody, or nobody.
        expect: A hash that was noted earlier, of any round or closing; None: none was.

    Returns:
        The first wrong thing in the order of the rounds, None if all is well.
    """
    with store.snapshot() as reader:
        return next(findings(store, reader, make_replay, public_key, expect), None)


def findings(
    store: RunStore,
    reader: Reader,
    make_replay: MakeReplay | None,
    public_key: str | None = None,
    expect: str | None = None,
) -> Iterator[Finding]:
    """All that is wrong, the first thing first; what follows it may be its consequence."""
    members = sorted(store.header["clients"])
    if reader.clients() != members:
        yield Finding(None, None, "the clients of the run are not those of its header")
    rules, replay = store.header.get("rules"), None
    if rules:
        try:
            replay = None if make_replay is None else make_replay(rules, members)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            yield Finding(None, None, f"the rules in the run's header are not those of a market: {error}")
            return
        if replay is None:
            yield Finding(None, None, "the run has a market whose rules are not known here")
            return
    balances, hashes = dict.fromkeys(members, 0), {OPENING: store.begun}
    chain = _Chain(store.begun, SignatureCheck(store, public_key), store.has_files)
    expected = OPENING
    for posted in reader.all_posted():
        if posted.round == 0 and replay is None:
            expected = 0  # without a market there are no opening balances
        if posted.round != expected:
            yield Finding(expected, None, "missing")
        expected = posted.round + 1
        yield from _round_findings(reader, posted, replay, balances, chain, store.header.get("min_clients"))
        chain.hash = hashes[posted.round] = posted.hash
    yield from _balance_findings(reader.kept_balances(), balances)
    if len(hashes) > 1 or reader.last() is not None:
        yield from chain.signatures.last_round_findings(max(hashes))
    closings = reader.closings()
    yield from chain.signatures.closing_findings(closings, hashes)
    if expect is not None and expect not in {*hashes.values(), *(closing.hash for closing in closings)}:
        rounds = sum(round >= 0 for round in hashes)
        yield Finding(None, None, f"none of its {rounds} rounds has the expected hash {expect}")


@dataclass
class _Chain:
    """What the next round must follow."""

    hash: str
    signatures: SignatureCheck
    has_files: bool


def _round_findings(
    reader: Reader,
    posted: PostedRound,
    replay: Replay | None,
    balances: dict[int, int],
    chain: _Chain,
    min_clients: int | None,
) -> Iterator[Finding]:
    """What is wrong with a round; `balances` are those before it, and become those after it."""
    try:
        line = reader.line(posted)
        metrics = metrics_of(line)
    except (ValueError, AttributeError) as error:
        yield Finding(posted.round, None, f"the line is not one that a round can report: {error}")
        return
    for key, table in row_tables.items():
        yield from _numbering_findings(reader, posted.round, key, table, key in line)
    transfers: Sequence[Transfer] = line.get("transfers") or ()
    if replay is not None:
        replayed = replay.opening() if posted.round == OPENING else replay.round(line)
        if replayed.complaint:  # the replay stopped early: what it made until then must still agree
            until_then = transfers[: len(replayed.transfers)]
            yield from _transfer_findings(posted.round, until_then, replayed.transfers)
            yield Finding(posted.round, None, replayed.complaint)
        yield from _transfer_findings(posted.round, transfers, replayed.transfers)
    yield from _quorum_findings(posted.round, line, min_clients)
    yield from _overdraft_findings(posted.round, transfers, balances)
    yield from _unsettled_findings(posted.round, balances)
    if metrics != reader.metrics(posted.round):
        yield Finding(posted.round, None, "the metrics are not the numbers of the round's line")
    yield from _hash_findings(posted, line, chain)
    yield from chain.signatures.round_findings(reader, posted, transfers)


def _hash_findings(posted: PostedRound, line: Mapping[str, Any], chain: _Chain) -> Iterator[Finding]:
    """The round follows the one before it, and has the hash of all that is recorded of it."""
    if posted.previous != chain.hash:
        yield Finding(posted.round, None, "the hash of the round before is not the one recorded here")
    if (posted.files is not None) != chain.has_files:
        yield Finding(posted.round, None, "it names files although its run does not, or the reverse")
    files = None if posted.files is None else parse_files(f"round {posted.round}", posted.files)
    if round_hash(posted.previous, posted.round, posted.checkpoint, line, files) != posted.hash:
        yield Finding(posted.round, None, "what is recorded does not have the hash that was recorded with it")


def chain_findings(store: RunStore, reader: Reader) -> Iterator[Finding]:
    """What is wrong with hashes and signatures alone; nothing is replayed or added up."""
    chain = _Chain(store.begun, SignatureCheck(store), store.has_files)
    for posted in reader.all_posted():
        line = reader.line(posted)
        yield from _hash_findings(posted, line, chain)
        yield from chain.signatures.round_findings(reader, posted, line.get("transfers") or ())
        chain.hash = posted.hash


def _quorum_findings(round: int, line: Mapping[str, Any], min_clients: int | None) -> Iterator[Finding]:
    """A round is rolled back where too few clients delivered; then none counts as having delivered."""
    seats: Sequence[Seat] = line.get("seats") or ()
    delivered = {seat.client for seat in seats if seat.delivered}
    rolled_back = line.get("rolled_back", False)
    if rolled_back and delivered:
        text = f"the round is rolled back, but client {min(delivered)} is said to have trained"
        yield Finding(round, None, text)
    if not rolled_back and min_clients is not None and is_below_quorum(seats, min_clients):
        text = f"only {len(delivered)} of at least {min_clients} clients delivered: it must be rolled back"
        yield Finding(round, None, text)


def _numbering_findings(
    reader: Reader, round: int, key: str, table: Table, is_reported: bool
) -> Iterator[Finding]:
    """Rows of a table are numbered from 0 without gaps, and are there only if the line has their key."""
    count, highest = reader.count_rows(table, round)
    if count and not is_reported:
        yield Finding(round, highest, f"is among the {key}, of which the round's line says nothing")
    if count <= highest:
        there = {sequence for sequence, *_ in reader.numbered_rows(table, round)}
        first = next(number for number in range(highest) if number not in there)
        yield Finding(round, first, f"missing from the {key}")


def _overdraft_findings(
    round: int, transfers: Sequence[Transfer], balances: dict[int, int]
) -> Iterator[Finding]:
    """Applies the transfers to the balances, one after the other; none may become negative."""
    for sequence, transfer in enumerate(transfers):
        source, amount = transfer.source, transfer.amount
        if amount < 0:
            yield Finding(round, sequence, f"a transfer of {amount} tokens")
        balances[source] = balances.get(source, 0) - amount
        balances[transfer.target] = balances.get(transfer.target, 0) + amount
        if source != ISSUER and balances[source] < 0:
            yield Finding(round, sequence, f"{account_name(source)} would hold {balances[source]} tokens")


def _transfer_findings(
    round: int, recorded: Sequence[Transfer], replayed: Sequence[Transfer]
) -> Iterator[Finding]:
    """The entries in which two lists of transfers differ."""
    for sequence in range(max(len(recorded), len(replayed))):
        here = recorded[sequence] if sequence < len(recorded) else None
        right = replayed[sequence] if sequence < len(replayed) else None
        if here != right:
            text = f"recorded is {describe_transfer(here)}; the replay gives {describe_transfer(right)}"
            yield Finding(round, sequence, text)


def _unsettled_findings(round: int, balances: Mapping[int, int]) -> Iterator[Finding]:
    """Between rounds escrows and pools are empty: transfers have two sides, so clients hold all tokens."""
    for account, balance in balances.items():
        if account < ISSUER and balance:
            yield Finding(round, None, f"{account_name(account)} still holds {balance} tokens")


def _balance_findings(kept: Mapping[int, int], summed: Mapping[int, int]) -> Iterator[Finding]:
    """The balances that the database adds up itself are the sums of the transfers."""
    for account in sorted({*kept, *summed}):
        here, right = kept.get(account, 0), summed.get(account, 0)
        if here != right:
            text = f"{account_name(account)} is kept at {here} tokens, but its transfers come to {right}"
            yield Finding(None, None, text)
