"""Puts the console together, and serves it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Request
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.staticfiles import StaticFiles

from ipfl.console import json_api, pages
from ipfl.console.access import AccessTokens, SignInNeeded
from ipfl.console.console import Console
from ipfl.console.found_runs import FoundRuns
from ipfl.console.guard import LOOPBACK, Guard, RequestLimits
from ipfl.console.pages import is_fragment, render
from ipfl.errors import InputError
from ipfl.ledger.database import StoreError

if TYPE_CHECKING:
    import uvicorn

TOKEN_FILE = "console-token"


def make_app(console: Console, hosts: frozenset[str] | None = LOOPBACK) -> FastAPI:
    """The web application.

    Args:
        console: Runs and rules.
        hosts: Names that it may be asked under; None: any.
    """
    app = FastAPI(
        title="ipfl console",
        version=version("ipfl"),
        description="Runs, clients and tokens, read from the run stores.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
    )
    app.state.console = console
    app.include_router(json_api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    app.add_exception_handler(InputError, _input_error)
    app.add_exception_handler(SignInNeeded, _http_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_middleware(Guard, hosts=hosts, limits=console.limits)
    return app


def _wants_page(request: Request) -> bool:
    return not request.url.path.startswith(("/api/", "/static/"))


def _error_page(request: Request, status: int, text: str) -> Response:
    console = request.app.state.console
    answer = render(request, "error.html", console, status=status, text=text)
    answer.status_code = status
    return answer


async def _input_error(request: Request, error: Exception) -> Response:
    status = 503 if isinstance(error, StoreError) else 400
    text = " ".join(str(error).split())
    if _wants_page(request):
        return _error_page(request, status, text)
    return JSONResponse({"detail": text}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    if not _wants_page(request):
        return await http_exception_handler(request, error)
    if error.status_code == 401:
        if is_fragment(request):
            return Response(status_code=204, headers={"hx-redirect": "/login"})
        return RedirectResponse("/login", 303)
    return _error_page(request, error.status_code, str(error.detail))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if not _wants_page(request):
        return await request_validation_exception_handler(request, error)
    return _error_page(request, 422, "the address of this page is not one of ours")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return host in LOOPBACK or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_console(
    runs: Path,
    host: str,
    *,
    auth: bool,
    token_file: Path | None = None,
    limits: RequestLimits | None = None,
) -> Console:
    """A console with its rules, checked.

    Raises:
        InputError: Another address than this machine's without `auth`; no such folder.
    """
    if not auth and not is_loopback(host):
        raise InputError(f"--host {host} lets other machines in: that needs --auth (see docs/console.md)")
    if not runs.is_dir():
        raise InputError(f"there is no folder {runs} with runs")
    tokens = AccessTokens.load(token_file or runs / TOKEN_FILE) if auth else None
    return Console(FoundRuns(runs), tokens, limits or RequestLimits())


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Names that a console at an address may be asked under; None: any, as at 0.0.0.0."""
    if host in ("0.0.0.0", "::"):
        return None
    return LOOPBACK if is_loopback(host) else LOOPBACK | {host.lower()}


def server_config(app: FastAPI, proxy: str | None) -> uvicorn.Config:
    """Settings of the server; `proxy` as in `serve`."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy or "",
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16_384,
    )


def serve(
    console: Console, host: str, port: int, when_ready: Callable[[], None], proxy: str | None = None
) -> None:
    """Serves until Ctrl-C. Requests are not logged.

    Args:
        console: Runs and rules.
        host: Address to listen on.
        port: Port to listen on.
        when_ready: Called when the first request would be answered.
        proxy: Address of the proxy in front of it, which says for whom it asks; None: there is none, and what
            requests say of their sender is not believed.

    Raises:
        InputError: The address cannot be listened on.
    """
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # which repeats the address
        raise InputError(f"cannot listen on {host}:{port}: {reason}; try another --port") from error
    with listening:
        when_ready()
        uvicorn.Server(server_config(make_app(console, allowed_hosts(host)), proxy)).run(sockets=[listening])
