"""Checks signatures: of the rounds of a run in turn, and of its closings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ipfl.core import Transfer
from ipfl.ledger.findings import Finding
from ipfl.ledger.lines import closing_hash
from ipfl.ledger.reader import PostedClosing, PostedRound, Reader, parse_files
from ipfl.ledger.signing import is_signed_by
from ipfl.ledger.statements import AccountBook, SignedHead
from ipfl.ledger.store import RunStore


class SignatureCheck:
    """Follows the rounds of a run, and says what is wrong with their signatures.

    Args:
        store: The run.
        public_key: Who must have signed; None: anybody, or nobody.
    """

    def __init__(self, store: RunStore, public_key: str | None = None):
        self.store, self.public_key = store, public_key
        self.signer: str | None = None
        """Who signed the last round; None: it has no signature."""
        self._book: AccountBook | None = None
        if store.secret is not None and store.header.get("rules"):
            self._book = AccountBook(store.header["clients"], store.secret)

    def round_findings(
        self, reader: Reader, posted: PostedRound, transfers: Sequence[Transfer]
    ) -> Iterator[Finding]:
        """What is wrong with the signature of the next round."""
        if self._book is not None:
            self._book.post(posted.round, transfers)
        found = reader.signature(posted.round)
        if found is None:
            if self.signer is not None:
                yield Finding(posted.round, None, "it is not signed")
            return
        self.signer = found.public_key
        head = self.store.ledger_head(posted.round, posted.hash, self._book)
        if found.accounts != head.accounts:
            yield Finding(posted.round, None, "the accounts that were signed are not those of its transfers")
        if not SignedHead(head, found.public_key, found.signature).is_valid():
            yield Finding(posted.round, None, "its signature is not one of what is recorded")

    def last_round_findings(self, round: int) -> Iterator[Finding]:
        """Whether the right key signed the last round. Its hash covers all others, whoever signed them."""
        yield from self._key_findings(round, self.signer)

    def _key_findings(self, round: int | None, found: str | None) -> Iterator[Finding]:
        if self.public_key is not None and found is None:
            yield Finding(round, None, "it is not signed")
        elif self.public_key is not None and found != self.public_key:
            text = f"signed by the key {found}, not by {self.public_key}; --public-key names another one"
            yield Finding(round, None, text)

    def closing_findings(
        self, closings: Sequence[PostedClosing], hashes: dict[int, str]
    ) -> Iterator[Finding]:
        """What is wrong with the closings, given the hash of every round."""
        for number, closing in enumerate(closings):
            if closing.number != number:
                yield Finding(None, None, f"closing {number} is missing")
            if closing.round not in hashes:
                there = sum(round >= 0 for round in hashes)
                text = f"the run ended after {closing.round + 1} rounds, but only {there} are there"
                yield Finding(None, None, text)
                return
            if closing.head != hashes[closing.round]:
                text = f"the run ended with another round {closing.round} than the one that is there"
                yield Finding(None, None, text)
            files = parse_files(f"closing {number}", closing.files)
            if closing_hash(closing.head, closing.round, files) != closing.hash:
                yield Finding(None, None, f"closing {number} does not have the hash recorded with it")
            if closing.public_key is None or closing.signature is None:
                if self.signer is not None and number == len(closings) - 1:
                    yield Finding(None, None, f"closing {number} is not signed")
                continue
            if not is_signed_by(closing.public_key, closing.hash.encode(), closing.signature):
                yield Finding(None, None, f"the signature of closing {number} is not one of what is recorded")
            if number == len(closings) - 1:
                yield from self._key_findings(None, closing.public_key)
