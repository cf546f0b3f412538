"""`ipfl console`: runs, clients and tokens in a browser. Only typer is imported at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipfl.errors import InputError


def console(
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder with runs.")] = Path("runs"),
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; one that other machines can reach needs --auth."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8080,
    auth: Annotated[
        bool,
        typer.Option("--auth", help="Ask for tokens: the operator sees all, a client its own page."),
    ] = False,
    proxy: Annotated[
        str | None,
        typer.Option(
            "--proxy",
            metavar="ADDRESS",
            help="Address of a proxy in front of it, whose X-Forwarded-For is believed.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the operator's token, created if there is none; default: DIR/console-token.",
        ),
    ] = None,
) -> None:
    """Start a web console: runs side by side, their clients, every token.

    Reads the run stores and changes nothing in them. Runs in progress are followed live.
    """
    try:
        from ipfl.console.app import TOKEN_FILE, open_console, serve
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("ipfl"):
            raise
        raise InputError('the console needs more packages: pip install "ipfl[ui]"') from error
    opened = open_console(runs, host, auth=auth, token_file=token_file)

    def tell_address() -> None:
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"http://{shown}:{port} (Ctrl-C ends it)", err=True)
        if auth:
            path = token_file or opened.runs.folder / TOKEN_FILE
            typer.echo(f"the operator's token is in {path}", err=True)

    serve(opened, host, port, tell_address, proxy)
