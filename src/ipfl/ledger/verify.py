"""Verifies a run's history: sums, a replay of every round, the hash chain, signatures.

Per round, in this order, so that a changed entry is named itself and not only the hash that it breaks:
numbering, replay of auction and rewards, overdraft at every transfer, empty escrow and pools, metrics, hash,
signature. What the run left in its folder is checked elsewhere (`ipfl.keep.run_audit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ipfl.core import ClientId, Fact, Seat, is_below_quorum
from ipfl.errors import InputError
from ipfl.ledger.reader import PostedRound, Reader
from ipfl.ledger.schema import OPENING
from ipfl.ledger.signing import RoundHead
from ipfl.ledger.store import RunStore
from ipfl.market.bank import ISSUER, account_name, describe_transfer
from ipfl.market.market_rows import Transfer


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    round: int | None
    """None where it concerns the whole run."""
    sequence: int | None
    """Of the transfer, or of the row that `what` names; None where it concerns the round as a whole."""
    what: str

    def __str__(self) -> str:
        if self.round is None:
            return self.what
        place = "opening" if self.round == OPENING else f"round {self.round}"
        entry = "" if self.sequence is None else f", entry {self.sequence}"
        return f"{place}{entry}: {self.what}"


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
        expect: A hash that was noted earlier, of any round; None: none was.

    Returns:
        The first wrong thing in the order of the rounds, None if all is well.
    """
    rules, replay = store.header.get("rules"), None
    if rules:
        if make_replay is None:
            return Finding(None, None, "the run has a market whose rules are not known here")
        try:
            replay = make_replay(rules, sorted(store.header["clients"]))
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            return Finding(None, None, f"the rules in the run's header are not those of a market: {error}")
    with store.snapshot() as reader:
        return next(findings(store, reader, replay, public_key, expect), None)


def findings(
    store: RunStore,
    reader: Reader,
    replay: Replay | None,
    public_key: str | None = None,
    expect: str | None = None,
) -> Iterator[Finding]:
    """All that is wrong, the first thing first; what follows it may be its consequence.

    Without a replay only sums, hashes and signatures are checked.
    """
    members = sorted(store.header["clients"])
    if reader.clients() != members:
        yield Finding(None, None, "the clients of the run are not those of its header")
    check = _RoundCheck(store, reader, replay)
    hashes, expected = [store.begun], OPENING
    for posted in reader.all_posted():
        if posted.round == 0 and not store.header.get("rules"):
            expected = 0  # without a market there are no opening balances
        if posted.round != expected:
            yield Finding(expected, None, "missing")
        expected = posted.round + 1
        yield from check.findings(posted)
        hashes.append(posted.hash)
    yield from _balance_findings(reader.kept_balances(), check.balances)
    if (damage := reader.damage()) is not None:
        yield Finding(None, None, f"the file of the store is damaged: {damage}")
    if public_key is not None and check.signer is None and len(hashes) > 1:
        yield Finding(expected - 1, None, "it is not signed")
    elif public_key is not None and check.signer not in (None, public_key):
        text = f"signed by the key {check.signer}, not by {public_key}; --public-key names another one"
        yield Finding(expected - 1, None, text)
    if expect is not None and expect not in hashes:
        text = f"none of its {max(0, expected)} rounds has the expected hash {expect}"
        yield Finding(None, None, text)


class _RoundCheck:
    """The check of one round after the other, and what the next one must follow."""

    def __init__(self, store: RunStore, reader: Reader, replay: Replay | None):
        self.store, self.reader, self.replay = store, reader, replay
        self.balances = dict.fromkeys([*store.header["clients"], ISSUER], 0)
        self.hash = store.begun
        self.signer: str | None = None
        """Who signed the last round; None: it has no signature."""

    def findings(self, posted: PostedRound) -> Iterator[Finding]:
        """What is wrong with the next round."""
        round, reader = posted.round, self.reader
        try:
            posting = reader.posting(posted)
            metrics = posting.metrics
        except (ValueError, AttributeError) as error:
            yield Finding(round, None, f"what is recorded is not what a round can report: {error}")
            return
        line = posting.line
        transfers: Sequence[Transfer] = line.get("transfers") or ()
        if self.replay is not None:
            replayed = self.replay.opening() if round == OPENING else self.replay.round(line)
            if replayed.complaint:  # the replay stopped early: what it made until then must still agree
                until_then = transfers[: len(replayed.transfers)]
                yield from _transfer_findings(round, until_then, replayed.transfers)
                yield Finding(round, None, replayed.complaint)
            yield from _transfer_findings(round, transfers, replayed.transfers)
        yield from _quorum_findings(round, line, self.store.header.get("min_clients"))
        yield from _overdraft_findings(round, transfers, self.balances)
        yield from _unsettled_findings(round, self.balances)
        if metrics != reader.metrics(round):
            yield Finding(round, None, "the metrics are not the numbers of the round's line")
        if posted.previous != self.hash:
            yield Finding(round, None, "the hash of the round before is not the one recorded here")
        if posting.hash(posted.previous) != posted.hash:
            yield Finding(round, None, "what is recorded does not have the hash that was recorded with it")
        self.hash = posted.hash
        yield from self._signature_findings(posted)

    def _signature_findings(self, posted: PostedRound) -> Iterator[Finding]:
        """A run that is signed is signed in every round; the last hash covers all, whoever signed them."""
        if posted.public_key is None:
            if self.signer is not None or posted.signature is not None:
                yield Finding(posted.round, None, "it is not signed")
            return
        self.signer = posted.public_key
        signed = {"public_key": posted.public_key, "signature": posted.signature}
        head = {"begun": self.store.begun, "round": posted.round, "hash": posted.hash}
        try:
            RoundHead.parse(head | signed)
        except InputError:
            yield Finding(posted.round, None, "its signature is not one of what is recorded")


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
        here, right = kept.get(account), summed.get(account)
        if here != right:
            text = f"{account_name(account)} is kept at {here} tokens, but its transfers come to {right}"
            yield Finding(None, None, text)
