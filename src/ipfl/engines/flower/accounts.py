"""What a node keeps of its account: the newest statement of the server, and all transfers that led to it.

The server signs what it says of a client's account after each round. The node checks it before it works on,
and keeps it in its memory folder. If the server's ledger says something else later, `ipfl ledger check`
proves what was said.
"""

from __future__ import annotations

import json
from pathlib import Path

from ipfl.core.files import write_json
from ipfl.engines.flower.protocol import AskHeader
from ipfl.errors import InputError
from ipfl.ledger.statements import Statement, StatementGapError, read_statement

STATEMENT_FILE = "statement.json"
DENIED_FILE = "statement-denied.json"
"""A statement that contradicts the one that is kept: together they prove that the server said both."""


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
