"""What a node keeps of its account: every statement of the server, a signed line each.

The server signs what it says of a client's account after each round. The node checks it before it works on,
and keeps it in its memory folder. If the server's ledger says something else later, `ipfl ledger check`
proves what was said.
"""

from __future__ import annotations

import json
from pathlib import Path

from ipfl.engines.flower.message_headers import AskHeader
from ipfl.errors import InputError
from ipfl.ledger.statements import Statement, StatementGapError, parse_statements, read_statement
from ipfl.system.files import read_text, write_text

STATEMENTS_FILE = "account.jsonl"
DENIED_FILE = "account-denied.jsonl"
"""The last statement that is kept, and one that contradicts it: together they prove that both were said."""


def keep_statement(folder: Path, ask: AskHeader) -> bool:
    """Checks what the server says of the client's account, and keeps it.

    Args:
        folder: The client's, of this run.
        ask: What the server sent.

    Returns:
        Whether it goes on from what is known; if not, the server is to send all from the beginning.

    Raises:
        InputError: The statement is false, or contradicts an earlier one.
    """
    told = read_statement(ask.statement)
    if told.client != ask.client:
        raise InputError(f"the server sent the account of client {told.client}")
    if told.public_key is None:
        raise InputError("the server did not sign its statement")
    known = _read_known(folder / STATEMENTS_FILE)
    if not known and told.since is not None:
        return False
    if known:
        try:
            told.check_follows(known[-1])
        except StatementGapError:
            return False
        except InputError:
            _write(folder / DENIED_FILE, [known[-1], told])
            raise
    if not known or told.round > known[-1].round:
        _write(folder / STATEMENTS_FILE, [*known, told])
    return True


def _write(path: Path, statements: list[Statement]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(one.to_json()) + "\n" for one in statements))


def _read_known(path: Path) -> list[Statement]:
    try:
        return parse_statements(read_text(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InputError(f"what was kept in {path} cannot be read: {error}") from error
