"""The operator's book of accounts: which node key is which client.

One account per key and one key per account. Flower says which key a node has proved to own; this file, which
only the operator can write, says whose account that is. A key that is not in it has no account, and with no
account there is no opening balance, whoever registered the key with Flower.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from ipfl.core import ClientId
from ipfl.core.sections import Section, one_line
from ipfl.deploy.keys import fingerprint
from ipfl.errors import InputError


class Account(Section):
    """A client of the federation."""

    client: int = Field(ge=0, lt=2**31 - 1, description="client id: the account's number in the ledger")
    key: str = Field(description="public key of its node, as in key.pub")
    name: str = Field("", description="for people")
    node: int | None = Field(None, description="id that Flower gave the node, once it is registered there")

    @field_validator("key")
    @classmethod
    def _public_key(cls, line: str) -> str:
        fingerprint(line.encode())
        return line.strip()

    @property
    def fingerprint(self) -> str:
        """Name of the key."""
        return fingerprint(self.key.encode())


@dataclass(frozen=True)
class Registry:
    """All accounts, in ascending client id."""

    accounts: tuple[Account, ...] = ()

    @classmethod
    def of(cls, accounts: Sequence[Account]) -> Registry:
        """Puts accounts together.

        Raises:
            InputError: Two accounts have the same client id, or the same key.
        """
        clients: dict[ClientId, Account] = {}
        keys: dict[str, Account] = {}
        for account in accounts:
            if account.client in clients:
                raise InputError(f"client {account.client} has two accounts")
            if (other := keys.get(account.fingerprint)) is not None:
                raise InputError(
                    f"clients {other.client} and {account.client} have the same key {account.fingerprint}: "
                    "every node needs a key of its own"
                )
            clients[account.client] = keys[account.fingerprint] = account
        return cls(tuple(clients[client] for client in sorted(clients)))

    @classmethod
    def load(cls, path: Path) -> Registry:
        """Reads the book.

        Raises:
            InputError: It is not there, or not such a book; the message says where it is wrong.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls.of([Account.model_validate(row) for row in content["accounts"]])
        except OSError as error:
            raise InputError(f"cannot read the accounts in {path}: {error.strerror}") from error
        except ValidationError as error:
            raise InputError(f"accounts in {path}: {one_line(error, Account)}") from error
        except InputError as error:
            raise InputError(f"accounts in {path}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a book of accounts (JSON with a list `accounts`)") from error

    def save(self, path: Path) -> None:
        """Writes the book; a reader sees the old one or the new one, never a part."""
        rows: list[dict[str, Any]] = [account.model_dump(mode="json") for account in self.accounts]
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps({"accounts": rows}, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    def clients(self) -> tuple[ClientId, ...]:
        """All client ids, ascending."""
        return tuple(account.client for account in self.accounts)

    def client_of(self, public_key: bytes) -> ClientId | None:
        """Whose key this is; None if nobody's. The key is PEM (as Flower has it) or an OpenSSH line."""
        try:
            name = fingerprint(public_key)
        except InputError:
            return None
        return next((account.client for account in self.accounts if account.fingerprint == name), None)

    def account(self, client: ClientId) -> Account | None:
        """The account of a client, if it has one."""
        return next((account for account in self.accounts if account.client == client), None)

    def opened(self, key: str, client: ClientId | None = None, name: str = "") -> Registry:
        """With a new account, by default under the next free id."""
        if client is None:
            client = max(self.clients(), default=-1) + 1
        if (holder := self.account(client)) is not None:
            raise InputError(
                f"client {client} has an account with key {holder.fingerprint} already; "
                "--replace gives it the new key instead"
            )
        return Registry.of([*self.accounts, Account(client=client, key=key, name=name)])

    def rekeyed(self, client: ClientId, key: str) -> Registry:
        """With another key for a client that has an account; its balance stays."""
        holder = self.account(client)
        if holder is None:
            raise InputError(f"client {client} has no account whose key could be replaced")
        fresh = Account(client=client, key=key, name=holder.name)
        return Registry.of([fresh if one is holder else one for one in self.accounts])

    def enrolled(self, client: ClientId, node: int) -> Registry:
        """With the id that Flower gave a client's node."""
        rows = [
            one.model_copy(update={"node": node}) if one.client == client else one for one in self.accounts
        ]
        return replace(self, accounts=tuple(rows))


def lookup(path: Path) -> Callable[[bytes], ClientId | None]:
    """A question to the book as it is then: a key that is replaced counts from the next question on."""
    book = Registry.load(path)
    version = _version(path)

    def client_of(public_key: bytes) -> ClientId | None:
        nonlocal book, version
        with suppress(OSError, InputError):  # an editor is at work: the last good book counts
            if (now := _version(path)) != version:
                book, version = Registry.load(path), now
        return book.client_of(public_key)

    return client_of


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino
