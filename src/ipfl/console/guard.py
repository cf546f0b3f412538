"""Checks that every request passes: host and origin, limits of rate and size; the headers of answers."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    # not "no-referrer": forms would be sent with the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_PEERS = 10_000
TOO_LARGE = "this request is too large"


@dataclass(frozen=True)
class RequestLimits:
    """Limits for one address."""

    body: int = 65_536
    """Bytes of a request's body."""
    per_second: float = 50.0
    burst: float = 300.0
    sign_ins_per_minute: float = 10.0


@dataclass
class Bucket:
    """A bucket of permits per address that fills up again with time."""

    per_second: float
    size: float
    _left: MutableMapping[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, peer: str) -> bool:
        """Takes one permit; False if there is none left."""
        now = time.monotonic()
        left, since = self._left.get(peer, (self.size, now))
        left = min(self.size, left + (now - since) * self.per_second)
        if len(self._left) > MAX_PEERS:
            self._left.clear()
        self._left[peer] = (max(0.0, left - 1), now)
        return left >= 1


def peer_of(scope: Scope) -> str:
    """The address that asks."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def host_name(header: str) -> str:
    """A `Host` header without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


class Guard:
    """ASGI middleware in front of everything.

    Args:
        app: What it guards.
        hosts: Names that the console may be asked under; None: any. Without a check a page from elsewhere
            could reach a console on this machine by a name that points here.
        limits: Limits for one address.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, limits: RequestLimits):
        self.app, self.hosts, self.limits = app, hosts, limits
        self._requests = Bucket(limits.per_second, limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, or refuses it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                is_static = scope["path"].startswith("/static/")
                answer.setdefault("cache-control", "public, max-age=3600" if is_static else "no-store")
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        left = self.limits.body

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, TOO_LARGE)
            return message

        await self.app(scope, receive_limited, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Any | None:
        host = headers.get("host", "")
        if self.hosts is not None and host_name(host) not in self.hosts:
            return _refuse(421, "the console does not answer under this name; use http://127.0.0.1")
        if not self._requests.take(peer_of(scope)):
            return _refuse(429, "too many requests; wait a moment")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:12]) > self.limits.body:
            return _refuse(413, TOO_LARGE)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and not _is_same_origin(headers, host):
            return _refuse(403, "requests from other sites are refused")
        return None


def _is_same_origin(headers: Headers, host: str) -> bool:
    """True if a request that changes something comes from the console's own pages, or from no page at all."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == host


def _refuse(status: int, text: str) -> PlainTextResponse:
    extra = {"retry-after": "5"} if status == 429 else {}
    return PlainTextResponse(text + "\n", status, extra)
