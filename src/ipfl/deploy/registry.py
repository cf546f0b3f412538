"""The accounts file (`accounts.json`), in which the operator says which node key belongs to which client.

Each account has one key, and each key has one account. Flower proves which key a node owns; this file, which
only the operator can write, says whose account that is. A node whose key is not in it has no account and gets
no opening balance, even if the key is registered with Flower.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from ipfl.config.sections import Section, one_line
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


@dataclass(frozen=True)
class Registry:
    """All accounts, in ascending client id."""

    accounts: tuple[NodeAccount, ...] = ()

    @classmethod
    def of(cls, accounts: Sequence[NodeAccount]) -> Registry:
        """Checks and sorts accounts.

        Raises:
            InputError: Two accounts have the same client id, or the same key.
        """
        clients: dict[ClientId, NodeAccount] = {}
        keys: dict[str, NodeAccount] = {}
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
        """Reads an accounts file.

        Raises:
            InputError: The file does not exist or is not valid; the message says where.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls.of([NodeAccount.model_validate(row) for row in content["accounts"]])
        except OSError as error:
            raise InputError(f"cannot read the accounts in {path}: {error.strerror}") from error
        except ValidationError as error:
            raise InputError(f"accounts in {path}: {one_line(error, NodeAccount)}") from error
        except InputError as error:
            raise InputError(f"accounts in {path}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not an accounts file (JSON with a list `accounts`)") from error

    def save(self, path: Path) -> None:
        """Writes the file atomically: a reader sees the old content or the new one, never a part."""
        rows: list[dict[str, Any]] = [account.model_dump(mode="json") for account in self.accounts]
        write_text(path, json.dumps({"accounts": rows}, indent=1) + "\n")

    def clients(self) -> tuple[ClientId, ...]:
        """All client ids, ascending."""
        return tuple(account.client for account in self.accounts)

    def clients_by_key(self) -> dict[str, ClientId]:
        """The client of each key, by its fingerprint."""
        return {account.fingerprint: account.client for account in self.accounts}

    def account(self, client: ClientId) -> NodeAccount | None:
        """The account of a client; None if it has none."""
        return next((account for account in self.accounts if account.client == client), None)

    def with_account(self, key: str, client: ClientId | None = None, name: str = "") -> Registry:
        """A copy with one more account; without a client id, it gets the highest id plus one."""
        if client is None:
            client = max(self.clients(), default=-1) + 1
        if (existing := self.account(client)) is not None:
            raise InputError(
                f"client {client} has an account with key {existing.fingerprint} already; "
                "--replace gives it the new key instead"
            )
        return Registry.of([*self.accounts, NodeAccount(client=client, key=key, name=name)])

    def with_key(self, client: ClientId, key: str) -> Registry:
        """A copy in which a client's account has another key; the ledger knows only the client's id."""
        existing = self.account(client)
        if existing is None:
            raise InputError(f"client {client} has no account whose key could be replaced")
        changed = NodeAccount(client=client, key=key, name=existing.name)
        return Registry.of([changed if account is existing else account for account in self.accounts])


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
