"""Statements of account: what a client can prove of its tokens, without seeing those of others.

Every account has a chain of its own: its head is the hash of the head before and of the client's transfers
in a round. The chain starts at a secret of the account, so that nobody can guess a head. After each round
all accounts (client, balance, head) are the entries of a Merkle tree, and the server signs its root together
with the hash of the round. A statement is one account, its audit path, the signed head, and the transfers.

Whoever holds a statement can prove to anybody what the server said (`check_statement`). Only the standard
library and `cryptography` are needed for that: nodes check statements too.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ipfl.core import ClientId, Transfer
from ipfl.core.replies import printable
from ipfl.errors import InputError
from ipfl.ledger.canonical import canonical, digest
from ipfl.ledger.merkle import MerkleTree, leaf_hash, root_of_path
from ipfl.ledger.signing import PUBLIC_KEY, SigningKey, is_signed_by

STATEMENT_FORMAT = 1
Entry = tuple[int, list[list[Any]]]
"""A round, and the client's transfers in it: kind, source, target, amount, cluster."""


class Account(NamedTuple):
    """One account after a round."""

    client: ClientId
    balance: int
    head: str
    """Newest hash of the account's own chain."""

    def leaf(self) -> bytes:
        """Its hash in the tree."""
        return leaf_hash(canonical(self._asdict()).encode())

    def after(self, entry: Entry) -> Account:
        """The account after one more round."""
        round, transfers = entry
        change = sum(
            amount * ((target == self.client) - (source == self.client))
            for _, source, target, amount, _ in transfers
        )
        return Account(self.client, self.balance + change, digest([self.head, round, transfers]))


@dataclass(frozen=True)
class LedgerHead:
    """What the server signs after a round."""

    run: str
    begun: str
    """Hash of the run's name and header, with which its chain begins."""
    round: int
    hash: str
    """The round's hash, which covers all rounds before it."""
    accounts: str | None
    """Root of the tree of all accounts; None without tokens."""

    def content(self) -> dict[str, Any]:
        """What is signed."""
        return {"ipfl": "ledger head", **vars(self)}

    def message(self) -> bytes:
        """The bytes that are signed."""
        return canonical(self.content()).encode()


@dataclass(frozen=True)
class SignedHead:
    """A head with its signature."""

    head: LedgerHead
    public_key: str
    signature: str

    @classmethod
    def make(cls, head: LedgerHead, key: SigningKey) -> SignedHead:
        """Signs a head."""
        return cls(head, key.public, key.sign(head.message()))

    def is_valid(self) -> bool:
        """Whether the signature is that of the public key."""
        return is_signed_by(self.public_key, self.head.message(), self.signature)


class AccountBook:
    """All accounts of a run, as they are after each round in turn.

    Args:
        clients: Whose accounts.
        secret: Of the run, in hex; the start of each account's chain is derived from it.
    """

    def __init__(self, clients: Iterable[ClientId], secret: str):
        self._secret = bytes.fromhex(secret)
        self.accounts = {client: Account(client, 0, self.start(client)) for client in sorted(clients)}
        self._places = {client: place for place, client in enumerate(self.accounts)}
        self._tree: MerkleTree | None = None

    def start(self, client: ClientId) -> str:
        """With what the chain of an account begins."""
        return hmac.new(self._secret, f"account {client}".encode(), hashlib.sha256).hexdigest()

    def post(self, round: int, transfers: Iterable[Transfer]) -> None:
        """Enters the transfers of a round."""
        moved = entries_by_client(transfers)
        changed = [client for client in moved if client in self.accounts]
        # A changed database can hold others; `verify` names them.
        for client in changed:
            self.accounts[client] = self.accounts[client].after((round, moved[client]))
        if self._tree is not None:
            self._tree.replace({self._places[client]: self.accounts[client].leaf() for client in changed})

    def root(self) -> str:
        """Root of the tree of all accounts."""
        return self._merkle_tree().root.hex()

    def place(self, client: ClientId) -> tuple[int, list[str]]:
        """Number of an account in the tree, and its audit path."""
        index = self._places[client]
        return index, [node.hex() for node in self._merkle_tree().audit_path(index)]

    def _merkle_tree(self) -> MerkleTree:
        """The tree as it is now, made once; a round replaces the leaves of those whose tokens moved."""
        self._tree = self._tree or MerkleTree(account.leaf() for account in self.accounts.values())
        return self._tree


def entries_by_client(transfers: Iterable[Transfer]) -> dict[ClientId, list[list[Any]]]:
    """The transfers of one round as they enter the chains of the accounts."""
    found: dict[ClientId, list[list[Any]]] = {}
    for kind, source, target, amount, cluster, client in transfers:
        found.setdefault(client, []).append([kind, source, target, amount, cluster])
    return found


@dataclass(frozen=True)
class Statement:
    """What the server says of one account after a round, and how it came to that."""

    account: Account
    index: int
    size: int
    path: list[str]
    signed: SignedHead | None
    """None: the run has no key, and nobody vouches for it."""
    head: LedgerHead
    start: Account
    """The account before the entries: at the beginning of the run, or at an earlier statement."""
    entries: list[Entry] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The statement as it travels and is kept."""
        return {
            "ipfl": "account statement",
            "format": STATEMENT_FORMAT,
            "head": self.head.content(),
            "public_key": None if self.signed is None else self.signed.public_key,
            "signature": None if self.signed is None else self.signed.signature,
            "account": self.account._asdict(),
            "index": self.index,
            "size": self.size,
            "path": self.path,
            "start": self.start._asdict(),
            "entries": [list(entry) for entry in self.entries],
        }

    def accounts(self) -> Iterable[Account]:
        """The account before the entries and after each of them."""
        account = self.start
        yield account
        for entry in self.entries:
            yield (account := account.after(entry))

    def following(self, earlier: Statement) -> Statement:
        """This statement with all that an earlier one told, if the two fit together.

        Raises:
            InputError: They do not: the server says something else than before.
        """
        ours, theirs = self.head, earlier.head
        if self.account.client != earlier.account.client:
            raise InputError(f"a statement of client {self.account.client}, not {earlier.account.client}")
        if (ours.run, ours.begun) != (theirs.run, theirs.begun):
            raise InputError(f"the statement is of another run ({ours.run}) than before ({theirs.run})")
        if earlier.signed and (self.signed is None or self.signed.public_key != earlier.signed.public_key):
            raise InputError("the statement is signed by another key than before")
        if ours.round < theirs.round:
            raise InputError(f"the statement is of round {ours.round}, after one of round {theirs.round}")
        if ours.round == theirs.round and ours != theirs:
            raise InputError(f"the server says something else of round {ours.round} than before")
        told = list(self.accounts())
        if earlier.account not in told:
            raise StatementGapError(
                f"after round {theirs.round} the server said that client {earlier.account.client} has "
                f"{earlier.account.balance} tokens; its word on round {ours.round} does not follow from that"
            )
        later = self.entries[told.index(earlier.account) :]
        if any(round <= theirs.round for round, _ in later):
            raise InputError(f"the server adds transfers to rounds up to {theirs.round}, told before")
        return replace(self, start=earlier.start, entries=[*earlier.entries, *later])

    def __str__(self) -> str:
        client, balance, _ = self.account
        when = "at the opening" if self.head.round < 0 else f"after round {self.head.round}"
        signer = "NOT SIGNED" if self.signed is None else f"signed by {self.signed.public_key}"
        return f"run {printable(self.head.run)}: client {client} has {balance} tokens {when}; {signer}"


class Ledger(Protocol):
    """What a statement is compared with."""

    begun: str

    def statement(self, client: ClientId, round: int | None = None) -> Statement:
        """What the ledger says of a client's account after a round."""
        ...


class AccountEvidence(Protocol):
    """What was said of an account: a statement, or the receipt for one."""

    @property
    def head(self) -> LedgerHead:
        """Of the round after which it was said."""
        ...

    @property
    def account(self) -> Account:
        """What was said."""
        ...


def denial(told: AccountEvidence, ledger: Ledger) -> str | None:
    """In what a ledger says otherwise than what was signed earlier; None: it says the same."""
    if ledger.begun != told.head.begun:
        return "it is of a run with another name or header"
    try:
        now = ledger.statement(told.account.client, told.head.round)
    except InputError as error:
        return str(error)
    if now.account.balance != told.account.balance:
        return f"it says {now.account.balance} tokens after round {told.head.round}"
    if now.account != told.account:
        return f"it says other transfers up to round {told.head.round}"
    if now.head != told.head:
        return f"it has another round {told.head.round}, or other accounts of others"
    return None


class StatementGapError(InputError):
    """A statement does not begin at or before the one that is known."""


def make_statement(
    book: AccountBook,
    head: LedgerHead,
    signed: SignedHead | None,
    client: ClientId,
    entries: Sequence[Entry],
    since: int | None = None,
) -> Statement:
    """The statement of a client.

    Args:
        book: All accounts after the round.
        head: Of the round.
        signed: The same, signed.
        client: Whose account.
        entries: All its transfers up to the round.
        since: Leave out rounds up to this one, after which the client has had a statement.
    """
    index, path = book.place(client)
    account = Account(client, 0, book.start(client))
    told = [entry for entry in entries if since is not None and entry[0] <= since]
    for entry in told:
        account = account.after(entry)
    later = list(entries[len(told) :])
    return Statement(book.accounts[client], index, len(book.accounts), path, signed, head, account, later)


def read_statement(content: Any, public_key: str | None = None) -> Statement:
    """A statement from its JSON, checked for everything that it says of itself.

    Args:
        content: The JSON.
        public_key: Who must have signed it; None: anybody, or nobody.

    Raises:
        InputError: It is none, its signature is false, or its account is not in the signed tree.
    """
    try:
        statement = _parse(content)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"this is no statement of account: {' '.join(repr(error).split())[:120]}") from error
    if statement.signed is not None and not statement.signed.is_valid():
        raise InputError("the signature of the statement is false")
    if public_key is not None and (statement.signed is None or statement.signed.public_key != public_key):
        raise InputError(f"the statement is not signed by the key {public_key}")
    leaf, path = statement.account.leaf(), [bytes.fromhex(node) for node in statement.path]
    root = root_of_path(leaf, statement.index, statement.size, path)
    if root is None or root.hex() != statement.head.accounts:
        raise InputError("the account of the statement is not among those that were signed")
    rounds = [round for round, _ in statement.entries]
    if rounds != sorted({*rounds}) or (rounds and rounds[-1] > statement.head.round):
        raise InputError("the transfers of the statement are not in the order of its rounds")
    *_, last = statement.accounts()
    if last != statement.account:
        raise InputError("the transfers of the statement do not lead to its balance")
    return statement


def _parse(content: Mapping[str, Any]) -> Statement:
    if content["ipfl"] != "account statement" or content["format"] != STATEMENT_FORMAT:
        raise ValueError("another kind or format")
    head = parse_head(content["head"])
    signed = None
    if content["public_key"] is not None:
        if not PUBLIC_KEY.fullmatch(content["public_key"]):
            raise ValueError("the public key")
        signed = SignedHead(head, content["public_key"], str(content["signature"]))
    account, start = (parse_account(content[name]) for name in ("account", "start"))
    if account.client != start.client:
        raise ValueError("two clients")
    entries = [_parse_entry(entry) for entry in content["entries"]]
    path = [bytes.fromhex(node).hex() for node in content["path"]]
    return Statement(account, int(content["index"]), int(content["size"]), path, signed, head, start, entries)


def parse_head(content: Mapping[str, Any]) -> LedgerHead:
    """A head from its JSON; other exceptions than those of our own are for the caller."""
    told = dict(content)
    if told.pop("ipfl") != "ledger head":
        raise ValueError("another kind of head")
    for name, kind in (("run", str), ("begun", str), ("round", int), ("hash", str), ("accounts", str)):
        if type(told[name]) is not kind:
            raise TypeError(f"{name} is {told[name]!r}")
    return LedgerHead(**told)


def parse_account(content: Mapping[str, Any]) -> Account:
    """An account from its JSON, in the same way."""
    account = Account(**content)
    if type(account.client) is not int or type(account.balance) is not int or type(account.head) is not str:
        raise TypeError("an account is a client, a balance and a head")
    return account


def _parse_entry(entry: Sequence[Any]) -> Entry:
    round, transfers = entry
    for kind, *numbers in transfers:
        if type(kind) is not str or len(numbers) != 4 or any(type(one) is not int for one in numbers):
            raise TypeError("an entry is a round and its transfers")
    if type(round) is not int:
        raise TypeError("an entry begins with its round")
    return round, [list(transfer) for transfer in transfers]
