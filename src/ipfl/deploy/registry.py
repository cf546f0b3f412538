"""The accounts file (`accounts.json`), in which the operator says which node key belongs to which client.

Each account has one key, and each key has one account. Flower proves which key a node owns; this file, which
only the operator can write, says whose account that is. A node whose key is not in it has no account and gets
no opening balance, even if the key is registered with Flower.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from ipfl.config.sections import Section
from ipfl.core import ClientId
from ipfl.deploy.credentials import fingerprint
from ipfl.errors import InputError
from ipfl.system.files import write_text


class NodeAccount(Section):
    """A client of the federation."""

    client: int = Field(ge=0, le=2**31 - 2, description="client id: the account's number in the ledger")
    key: str = Field(description="public key of its node, as in key.pub")
    name: str = Field("", description="a name for people to read")

    @field_validator("key")
    @classmethod
    def _check_key(cls, line: str) -> str:
        fingerprint(line.encode())
        return line.strip()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the key."""
        return fingerprint(self.key.encode())


class Registry(Section):
    """All accounts, in ascending client id."""

    accounts: tuple[NodeAccount, ...] = ()

    @field_validator("accounts")
    @classmethod
    def _sort(cls, accounts: tuple[NodeAccount, ...]) -> tuple[NodeAccount, ...]:
        return tuple(sorted(accounts, key=lambda account: account.client))

    @model_validator(mode="after")
    def _check_accounts(self) -> Self:
        keys: dict[str, ClientId] = {}
        for before, account in pairwise((None, *self.accounts)):
            assert account is not None
            if before is not None and before.client == account.client:
                raise ValueError(f"client {account.client} has two accounts")
            if (other := keys.get(account.fingerprint)) is not None:
                raise ValueError(
                    f"clients {other} and {account.client} have the same key {account.fingerprint}: "
                    "every node needs a key of its own"
                )
            keys[account.fingerprint] = account.client
        return self

    @classmethod
    def load(cls, path: Path) -> Registry:
        """Reads an accounts file.

        Raises:
            InputError: The file does not exist or is not valid; the message says where.
        """
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["accounts"]
            return cls(accounts=tuple(NodeAccount.of(row) for row in rows))
        except OSError as error:
            raise InputError(f"cannot read the accounts in {path}: {error.strerror}") from error
        except InputError as error:
            raise InputError(f"accounts in {path}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not an accounts file (JSON with a list `accounts`)") from error

    def save(self, path: Path) -> None:
        """Writes the file atomically: a reader sees the old content or the new one, never a part."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    def clients(self) -> tuple[ClientId, ...]:
        """All client ids, ascending."""
        return tuple(account.client for account in self.accounts)

    def clients_by_key(self) -> dict[str, ClientId]:
        """The client of each key, by its fingerprint."""
        return {account.fingerprint: account.client for account in self.accounts}

    def with_account(
        self, key: str, client: ClientId | None = None, name: str = "", *, replace: bool = False
    ) -> Registry:
        """A copy with one more account, or with another key for an account: the ledger knows only its id.

        Args:
            key: Public key of the node.
            client: Its id; None: the highest id plus one.
            name: For people to read.
            replace: Whether the client has an account already.
        """
        known = {account.client: account for account in self.accounts}
        if replace and client is None:
            raise InputError("--replace needs --client: whose key is replaced?")
        if client is None:
            client = max(known, default=-1) + 1
        existing = known.get(client)
        if replace and existing is None:
            raise InputError(f"client {client} has no account whose key could be replaced")
        if existing is not None and not replace:
            raise InputError(
                f"client {client} has an account with key {existing.fingerprint} already; "
                "--replace gives it the new key instead"
            )
        known[client] = NodeAccount(client=client, key=key, name=existing.name if existing else name)
        return Registry(accounts=tuple(known.values()))


def client_lookup(path: Path) -> Callable[[bytes], ClientId | None]:
    """A function from a public key to its client, which reads the accounts file again when it has changed."""
    clients, version = Registry.load(path).clients_by_key(), _file_version(path)

    def client_of(public_key: bytes) -> ClientId | None:
        nonlocal clients, version
        with suppress(OSError, InputError):  # someone is editing the file: keep the last valid content
            if (current := _file_version(path)) != version:
                clients, version = Registry.load(path).clients_by_key(), current
        with suppress(InputError):
            return clients.get(fingerprint(public_key))
        return None

    return client_of


def _file_version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino
