"""The runs of a database by name, and their headers: what a run says of itself as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.engine import URL

from ipfl.errors import InputError
from ipfl.ledger import database, schema


def header_text(run: str, header: Mapping[str, Any]) -> str:
    """The header as JSON.

    Raises:
        InputError: It cannot be the header of a run.
    """
    if not run or not run.isprintable():
        raise InputError(f"a run needs a printable name, not {run!r}")
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the run's header cannot be kept as JSON: {error}") from error
    members = json.loads(text).get("clients")
    if not isinstance(members, list) or not all(isinstance(i, int) and 0 <= i < 2**31 for i in members):
        raise InputError("the run's header needs clients, a list of their ids")
    if len(set(members)) < len(members):
        raise InputError("the run's header names a client twice")
    if not _are_names(header.get("client_names") or {}):
        raise InputError("the run's header has client_names that are not texts by client id")
    if header.get("rules") and not isinstance(header["rules"], Mapping):
        raise InputError("the run's header has rules that are not a mapping")
    return text


def _are_names(names: Any) -> bool:
    """Whether these are names of clients: printable texts by id."""
    return isinstance(names, Mapping) and all(
        str(client).isascii()
        and str(client).isdigit()
        and len(str(client)) < 11
        and isinstance(name, str)
        and name.isprintable()
        for client, name in names.items()
    )


def parse_header(text: Any, name: str, url: URL) -> dict[str, Any]:
    """The header from its JSON. It is not trusted: another program may have changed the database."""
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("it is not an object")
        header_text(name, header)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{database.display_url(url)}: the header of run {name!r} cannot be read: {error}"
        ) from error
    return header


def find_stored_run(connection: Connection, name: str) -> tuple[int, str] | None:
    """Number and header of a run; None: there is none of this name."""
    columns = (schema.runs.c.id, schema.runs.c.header)
    row = connection.execute(select(*columns).where(schema.runs.c.name == name)).first()
    return None if row is None else (row.id, row.header)


def choose_run(known: Sequence[str], run: str | None, url: URL) -> str:
    """The name of the run to open: the given one, or the only one."""
    if run is not None and run not in known:
        raise InputError(f"{database.display_url(url)} has no run {run!r}; it holds {_list_names(known)}")
    if run is None and len(known) != 1:
        raise InputError(f"{database.display_url(url)} holds {_list_names(known)}; name one of these runs")
    return known[0] if run is None else run


def _list_names(known: Sequence[str]) -> str:
    return ", ".join(known) or "no runs"
