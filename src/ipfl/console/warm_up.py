"""Asks the console for a few pages before anybody else can, so that the first visitor does not wait.

What happens only once is then done: modules, templates and database statements are loaded and compiled, the
stores opened. That takes a quarter of a second of processor time, several times what a page takes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

from starlette.types import ASGIApp, Message

from ipfl.console.console import Console

HOST = "127.0.0.1"
"""A console answers under this name wherever it listens."""


def warm_up(app: ASGIApp, console: Console) -> list[tuple[str, int]]:
    """Asks for the list of runs, and for the pages of the newest run with all that their charts need.

    A page that fails now says why when somebody asks for it: nothing is raised.

    Args:
        app: The console's application.
        console: Whose runs, and whose token.

    Returns:
        Addresses and the statuses of the answers.
    """
    return asyncio.run(_ask_all(app, console))


async def _ask_all(app: ASGIApp, console: Console) -> list[tuple[str, int]]:
    found = []
    for address in _addresses(console):
        with suppress(Exception):
            found.append((address, await _ask(app, console, address)))
    return found


def _addresses(console: Console) -> Iterator[str]:
    yield "/static/console.css"
    yield "/"
    runs = console.runs.find().values()
    if runs:
        newest = max(runs, key=lambda run: run.updated() or 0.0)
        page = f"/runs/{quote(newest.key)}"
        yield page
        for part in ("series", "heat-map", "flow"):
            yield f"/api{page}/{part}"
        yield f"{page}/clients"
        yield f"{page}/ledger"


async def _ask(app: ASGIApp, console: Console, address: str) -> int:
    """Sends one request to the application, not over the network; returns the status of its answer."""
    headers = [(b"host", HOST.encode())]
    if console.access.tokens is not None:
        headers.append((b"authorization", f"Bearer {console.access.tokens.operator_token}".encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": address,
        "raw_path": address.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "server": (HOST, None),
    }
    status = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status
