"""Accounts that outlive a run: a run opens with the balances that the last one under the same name left.

A file beside the runs, `NAME.accounts.json`, names the run that has the accounts. The balances themselves are
read from the ledger of that run, which is verified first; they become the opening of the next one, and its
header says where they come from. So a client keeps its balance between runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipfl.core import ClientId
from ipfl.errors import InputError
from ipfl.keep.run_folder import RunOutput
from ipfl.ledger.store import RunStore
from ipfl.ledger.verify import Finding
from ipfl.system.files import refuse_special_file, write_json
from ipfl.system.folder_lock import FolderLock

ACCOUNTS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
POINTER_SUFFIX = ".accounts.json"


@dataclass(frozen=True)
class CarriedAccounts:
    """Balances that a run begins with."""

    name: str
    run: str | None = None
    """Who left them; None: this is the first run under the name."""
    head: str | None = None
    """The hash of its last round."""
    balances: Mapping[ClientId, int] = field(default_factory=dict)
    """Of all clients that ever had an account under the name."""

    def brought(self, clients: tuple[ClientId, ...]) -> dict[ClientId, int]:
        """Balances of those who take part; newcomers have none, and get the usual opening."""
        return {client: self.balances[client] for client in clients if client in self.balances}

    def record(self, clients: tuple[ClientId, ...]) -> dict[str, Any]:
        """What the header of the run says: whence the balances come, and those of clients that are absent."""
        absent = {str(c): tokens for c, tokens in sorted(self.balances.items()) if c not in clients}
        return {"name": self.name, "run": self.run, "head": self.head, "absent": absent}


def refuse_forgetting(output: RunOutput) -> None:
    """Refuses a new run in the place of one that has accounts: its own would be taken for them.

    Raises:
        InputError: A file beside the folder says that it has accounts.
    """
    folder = Path(output.path).resolve()
    for pointer in sorted(folder.parent.glob(f"*{POINTER_SUFFIX}")):
        known = _read_pointer(pointer)
        if known is not None and known["run"] == folder.name:
            name = pointer.name.removesuffix(POINTER_SUFFIX)
            raise InputError(
                f"run {folder.name!r} has the accounts {name!r}: another run in its folder would forget them "
                f"({pointer})"
            )


def load_carried_accounts(output: RunOutput, verify: Callable[[RunStore], Finding | None]) -> CarriedAccounts:
    """The accounts that a new run begins with, or those that a resumed one was begun with.

    Args:
        output: The run.
        verify: Says what is wrong with the run that left them.

    Raises:
        InputError: Another run has them, or the ledger of the last one is gone or wrong.
    """
    name = str(output.accounts)
    if not ACCOUNTS_NAME.fullmatch(name):
        raise InputError(f"accounts need a plain name, not {name!r}")
    folder, pointer = Path(output.path).resolve(), _pointer(output)
    known = _read_pointer(pointer)
    if output.resume:
        store = RunStore.open(folder)
        carried = _carried(store)
        # A process that died as it began may not have taken them: they are where it found them.
        holder = None if known is None else known["run"]
        if holder not in (folder.name, carried.run) or (
            holder != folder.name and known and known["head"] is None
        ):
            raise InputError(f"run {folder.name!r} does not have the accounts {name!r} any more: {pointer}")
        return carried
    if known is None:
        return CarriedAccounts(name)
    if known["head"] is None:
        raise InputError(f"run {known['run']!r} has the accounts {name!r}: resume and end it first")
    store = _open_last(folder, known["run"])
    if (wrong := verify(store) or _not_ended(store, name, known["head"])) is not None:
        raise InputError(f"run {known['run']!r}, which left the accounts {name!r}, is wrong: {wrong}")
    return CarriedAccounts(name, store.name, store.head(), left_balances(store))


def _not_ended(store: RunStore, name: str, head: str | None) -> str | None:
    """Why a run, whose history is true in itself, cannot be the one that ended with this hash."""
    told = store.header.get("accounts")
    if not isinstance(told, dict) or told.get("name") != name:
        return "it was begun without them"
    if store.head() != head:
        return f"it did not end with round {store.last_round()}: rounds are missing"
    return None


@contextmanager
def taking_accounts(output: RunOutput, left_by: str | None) -> Iterator[None]:
    """Inside, a run begins or goes on with its accounts; at the end they are its own. One process at a time.

    Args:
        output: The run.
        left_by: The run whose balances it opens with; None: it is the first under the name.

    Raises:
        InputError: Another run has taken them since they were read.
    """
    if output.accounts is None:
        yield
        return
    lock = FolderLock(Path(output.path).resolve().parent)
    try:
        pointer = _pointer(output)
        known = _read_pointer(pointer)
        holder, is_open = (None, False) if known is None else (known["run"], known["head"] is None)
        is_own = output.resume and holder == Path(output.path).resolve().name
        if not is_own and (holder != left_by or is_open):
            name = output.accounts
            raise InputError(f"run {holder!r} has taken the accounts {name!r} meanwhile: {pointer}")
        yield
        mark_accounts(output, None)
    finally:
        lock.release()


def left_balances(store: RunStore) -> dict[ClientId, int]:
    """What a run left: the balances of its clients, and of those that were absent."""
    kept = dict(_carried(store).balances) if store.header.get("accounts") else {}
    return kept | {account: tokens for account, tokens in store.balances().items() if account >= 0}


def _carried(store: RunStore) -> CarriedAccounts:
    """What the header of a run says."""
    told = store.header.get("accounts")
    if told is None:
        raise InputError(f"run {store.name!r} was begun without accounts of a name")
    try:
        brought = (store.header.get("rules") or {}).get("brought") or {}
        balances = {int(client): int(tokens) for client, tokens in {**told["absent"], **brought}.items()}
        return CarriedAccounts(told["name"], told["run"], told["head"], balances)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        text = f"the header of run {store.name!r} does not say where its balances come from: {error!r}"
        raise InputError(text) from error


def mark_accounts(output: RunOutput, head: str | None) -> None:
    """Notes that a run has its accounts (None), or has ended with this hash and left them."""
    if output.accounts is not None:
        write_json(_pointer(output), {"run": Path(output.path).resolve().name, "head": head})


def accounts_findings(store: RunStore, folder: Path | None) -> Iterator[Finding]:
    """What is wrong with where a run's opening balances come from.

    Raises:
        InputError: The run that left them is not there, or the header does not say which it is.
    """
    if store.header.get("accounts") is None:
        return
    carried = _carried(store)
    if carried.run is None:
        return
    last = _open_last((folder or store.file.parent).resolve(), carried.run)
    if last.head() != carried.head:
        yield Finding(None, None, f"run {last.name!r} is not the one whose balances this run opened with")
    elif left_balances(last) != carried.balances:
        text = f"the opening balances are not those that run {last.name!r} left"
        yield Finding(None, None, text)


def _open_last(folder: Path, run: str) -> RunStore:
    try:
        return RunStore.open(folder.parent / run)
    except InputError as error:
        raise InputError(f"cannot open the run that left the accounts: {error}") from error


def _pointer(output: RunOutput) -> Path:
    return Path(output.path).resolve().parent / f"{output.accounts}{POINTER_SUFFIX}"


def _read_pointer(path: Path) -> dict[str, Any] | None:
    refuse_special_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"run": str(content["run"]), "head": None if content["head"] is None else str(content["head"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error!r}") from error
