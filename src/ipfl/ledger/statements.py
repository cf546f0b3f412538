"""Statements of account: one signed line per account and round, which the client keeps.

The server signs what it says of a client's account after a round, together with the hash of the round, which
covers everything that all rounds up to it posted. Whoever rewrites the ledger later, with or without the key,
is found by every client who kept a line: its hash is no longer that of the ledger (`RunStore.denial`).

Only pydantic and `cryptography` are needed to check a statement: nodes do so too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ipfl.core import ClientId
from ipfl.core.replies import printable
from ipfl.errors import InputError
from ipfl.ledger.schema import OPENING
from ipfl.ledger.signing import RoundHead


class AccountMove(NamedTuple):
    """A transfer of the client's, and its round."""

    round: int
    kind: str
    source: int
    target: int
    amount: int
    cluster: int


class Statement(RoundHead):
    """What the server says of one account after a round, and how it came to that."""

    ipfl: str = "account statement"
    run: str
    """Its name."""
    client: ClientId
    balance: int
    since: int | None
    """The round of the statement that this one goes on from; None: it tells all from the beginning."""
    moved: tuple[AccountMove, ...]
    """The client's transfers since then."""

    def to_json(self) -> dict[str, Any]:
        """The statement as it travels and is kept."""
        return self.model_dump(mode="json")

    def check_follows(self, earlier: Statement) -> None:
        """Accepts a statement that fits to an earlier one.

        Raises:
            StatementGapError: It goes on from another one.
            InputError: The server says something else than before.
        """
        if self.client != earlier.client:
            raise InputError(f"a statement of client {self.client}, not {earlier.client}")
        if (self.run, self.begun) != (earlier.run, earlier.begun):
            raise InputError(f"the statement is of another run ({self.run}) than before ({earlier.run})")
        if self.public_key != earlier.public_key:
            raise InputError("the statement is signed by another key than before")
        if self.round < earlier.round:
            raise InputError(f"the statement is of round {self.round}, after one of round {earlier.round}")
        if self.round == earlier.round and self.hash != earlier.hash:
            raise InputError(f"the server says something else of round {self.round} than before")
        if self.since not in (None, earlier.round):
            raise StatementGapError(f"the statement goes on from round {self.since}, not {earlier.round}")
        # What it says of the rounds up to the earlier one must come to what was said then.
        later = [one for one in self.moved if one.round > earlier.round]
        if self.balance - balance_of(self.client, later) != earlier.balance:
            raise InputError(
                f"the server said {earlier.balance} tokens after round {earlier.round}; "
                f"its word on round {self.round} does not follow from that"
            )

    def __str__(self) -> str:
        when = "at the opening" if self.round < 0 else f"after round {self.round}"
        signer = "NOT SIGNED" if self.public_key is None else f"signed by {self.public_key}"
        return f"run {printable(self.run)}: client {self.client} has {self.balance} tokens {when}; {signer}"


class StatementGapError(InputError):
    """A statement goes on from another one than the one that is known."""


def balance_of(client: ClientId, moved: Iterable[AccountMove]) -> int:
    """What transfers add up to for a client."""
    return sum(one.amount * ((one.target == client) - (one.source == client)) for one in moved)


def read_statement(content: Any, public_key: str | None = None) -> Statement:
    """A statement from its JSON, checked for everything that it says of itself.

    Args:
        content: The JSON.
        public_key: Who must have signed it; None: anybody, or nobody.

    Raises:
        InputError: It is none, its signature is false, or its transfers do not lead to its balance.
    """
    statement = Statement.parse(content)
    if public_key is not None and statement.public_key != public_key:
        raise InputError(f"the statement is not signed by the key {public_key}")
    since = OPENING - 1 if statement.since is None else statement.since
    rounds = [since + 1, *(one.round for one in statement.moved), statement.round]
    if since < statement.round and rounds != sorted(rounds):
        raise InputError("the transfers of the statement are not in the order of its rounds")
    if statement.since is None and balance_of(statement.client, statement.moved) != statement.balance:
        raise InputError("the transfers of the statement do not lead to its balance")
    return statement


def parse_statements(text: str, public_key: str | None = None) -> list[Statement]:
    """What a client kept, a statement a line, each of which fits to the one before.

    Raises:
        InputError: They do not fit together, or one of them is wrong; or there is none.
    """
    found: list[Statement] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(read_statement(json.loads(line), public_key))
            for earlier in found[-2:-1]:
                found[-1].check_follows(earlier)
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, InputError) else "this is no statement of account"
            raise InputError(f"line {number}: {reason}") from error
    if not found:
        raise InputError("there is no statement of account in it")
    return found
