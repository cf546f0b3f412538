"""The accounts of a stored run, added up from its transfers, for signed heads of rounds and statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipfl.core import Transfer
from ipfl.errors import InputError
from ipfl.ledger.reader import Reader
from ipfl.ledger.schema import OPENING
from ipfl.ledger.statements import (
    AccountBook,
    LedgerHead,
    SignedHead,
    Statement,
    entries_by_client,
    make_statement,
)


class RunAccounts:
    """What was added up last is kept, so that the next round costs its own transfers only.

    Args:
        name: Of the run.
        begun: The hash that its first round follows.
        header: What the store says of the run.
        secret: Of the run; None in a run of a release without statements.
    """

    def __init__(self, name: str, begun: str, header: Mapping[str, Any], secret: str | None):
        self._name, self._begun, self._header, self._secret = name, begun, header, secret
        self._newest: tuple[int, AccountBook] | None = None

    def after(
        self, reader: Reader, round: int, moved: Sequence[Transfer] | None = None
    ) -> AccountBook | None:
        """The accounts after a round that is posted, the last one; None without tokens.

        Args:
            reader: Of this run.
            round: Its number.
            moved: Its transfers; None: they are read.
        """
        if self._secret is None or not self._header.get("rules"):
            return None
        if self._newest is None or self._newest[0] != round:
            if self._newest is not None and self._newest[0] == round - 1:
                book, since = self._newest[1], round
            else:
                book, since = AccountBook(self._header["clients"], self._secret), OPENING
            for number in range(since, round + 1):
                read = (one.transfer for one in reader.transfers(round=number))
                book.post(number, read if moved is None or number != round else moved)
            # Until the transaction is committed nobody else sees it; if it fails, the round is posted again.
            self._newest = (round, book)
        return self._newest[1]

    def head(self, round: int, hash: str, book: AccountBook | None) -> LedgerHead:
        """What is signed of a round."""
        return LedgerHead(self._name, self._begun, round, hash, None if book is None else book.root())

    def statement(self, reader: Reader, client: int, round: int | None, since: int | None) -> Statement:
        """What can be said of a client's account; see `RunStore.statement`."""
        if client not in self._header["clients"]:
            raise InputError(f"run {self._name!r} has no client {client}")
        posted = reader.last() if round is None else reader.posted(round)
        if posted is None:
            missing = "rounds" if round is None else f"round {round}"
            raise InputError(f"run {self._name!r} has no {missing}")
        book = self.after(reader, posted.round)
        if book is None:
            raise InputError(f"run {self._name!r} has no tokens, or is of a release without statements")
        head, found = self.head(posted.round, posted.hash, book), reader.signature(posted.round)
        signed = None if found is None else SignedHead(head, found.public_key, found.signature)
        entries: dict[int, list[list[Any]]] = {}
        for one in reader.transfers(client):
            if one.round <= posted.round:
                moved = entries_by_client([one.transfer])[client]
                entries.setdefault(one.round, []).extend(moved)
        return make_statement(book, head, signed, client, list(entries.items()), since)
