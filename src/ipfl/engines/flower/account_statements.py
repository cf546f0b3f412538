"""What a node keeps of its account: the newest statement of the server, and all transfers that led to it.

The server signs what it says of a client's account after each round. The node checks it before it works on,
keeps it in its memory folder, and signs a receipt. If the server's ledger says something else later, `ipfl
ledger check` proves what was said; if the node denies that it was told, the receipt proves that it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipfl.core import ClientId
from ipfl.engines.flower.message_headers import AskHeader
from ipfl.errors import InputError
from ipfl.ledger.receipts import RECEIPT_KEY_FILE, VOUCHER_FILE, Receipt, Voucher, read_receipt
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.statements import Statement, StatementGapError, read_statement
from ipfl.system.files import write_json

STATEMENT_FILE = "statement.json"
RECEIPT_FILE = "receipt.json"
"""The node's signature under the newest statement; the server has it too."""
DENIED_FILE = "statement-denied.json"
"""A statement that contradicts the one that is kept: together they prove that the server said both."""

HasKey = Callable[[ClientId, str], bool]
"""Whether a public key, as OpenSSH writes it, is that of a client's node."""


def keep_statement(folder: Path, ask: AskHeader) -> bool:
    """Checks what the server says of the client's account, and keeps it.

    Args:
        folder: The client's, of this run.
        ask: What the server sent.

    Returns:
        Whether it follows from what is known; if not, the server is to send all from the beginning.

    Raises:
        InputError: The statement is false, or contradicts an earlier one.
    """
    told = read_statement(ask.statement)
    if told.account.client != ask.client:
        raise InputError(f"the server sent the account of client {told.account.client}")
    if told.signed is None:
        raise InputError("the server did not sign its statement")
    known = _read_known(folder / STATEMENT_FILE)
    try:
        kept = told if known is None else told.following(known)
    except InputError as error:
        if known is not None and isinstance(error, StatementGapError) and told.start != known.start:
            return False
        _write(folder / DENIED_FILE, told)
        raise
    _write(folder / STATEMENT_FILE, kept)
    return True


def countersign(folder: Path, memory: Path) -> Receipt:
    """The receipt for the statement that was kept last, which the node keeps as well.

    Args:
        folder: The client's, of this run.
        memory: The node's folder, with the key for receipts.
    """
    told = _read_known(folder / STATEMENT_FILE)
    if told is None:
        raise InputError(f"there is no statement in {folder} to give a receipt for")
    key = SigningKey.read_or_make(memory / RECEIPT_KEY_FILE)
    voucher = None
    if (memory / VOUCHER_FILE).is_file():
        voucher = Voucher(**json.loads((memory / VOUCHER_FILE).read_text(encoding="utf-8")))
    receipt = Receipt.make(told, key, voucher)
    write_json(folder / RECEIPT_FILE, receipt.to_json())
    return receipt


def check_receipt(
    content: Mapping[str, Any] | None, told: Mapping[str, Any], has_key: HasKey | None = None
) -> Receipt:
    """What a node signed of a statement, seen from the server.

    Args:
        content: The receipt.
        told: The statement.
        has_key: Which keys are registered: that of the client must vouch for who signed, or the client could
            deny it later. None: no keys are.

    Raises:
        InputError: It signed nothing, or something else.
    """
    if content is None:
        raise InputError("it sent none")
    receipt = read_receipt(content)
    if not receipt.is_for(told):
        raise InputError("it is for another statement")
    voucher = receipt.voucher
    if has_key is not None and (voucher is None or not has_key(receipt.account.client, voucher.node_key)):
        raise InputError("the key that is registered for it does not vouch for who signed")
    return receipt


def _write(path: Path, statement: Statement) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, statement.to_json())


def _read_known(path: Path) -> Statement | None:
    try:
        return read_statement(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the statement that was kept in {path} cannot be read: {error}") from error
