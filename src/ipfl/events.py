"""What a person should know of a round, in few sentences.

An event about one client begins with `client N`; what followed for that client may come after a semicolon.
Those of a round that say the same of several clients become one: a round that loses a third of its clients
says so in a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ipfl.core import ClientId

ABOUT = re.compile(r"client (\d+) ([^;]+)")
NAMED = 10
"""Clients that are named at most."""


def about(event: str) -> ClientId | None:
    """The client that an event is about, if it is about one."""
    found = ABOUT.match(event)
    return int(found[1]) if found else None


def gathered(events: Iterable[str]) -> list[str]:
    """The same with one sentence for all clients of which the same is said, where the first of them stood.

    What followed for a single client is left out where there are several.
    """
    groups: dict[str, dict[ClientId | None, str]] = {}
    for event in events:
        found = ABOUT.match(event)
        groups.setdefault(found[2] if found else event, {})[about(event)] = event
    return [_sentence(what, said) for what, said in groups.items()]


def _sentence(what: str, said: dict[ClientId | None, str]) -> str:
    clients = sorted(client for client in said if client is not None)
    if len(clients) < 2:
        return next(iter(said.values()))
    if len(clients) > NAMED:
        return f"{len(clients)} clients ({', '.join(map(str, clients[:NAMED]))}, …) {what}"
    return f"clients {', '.join(map(str, clients[:-1]))} and {clients[-1]} {what}"
