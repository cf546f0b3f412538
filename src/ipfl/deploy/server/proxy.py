"""A reverse proxy with limits: reads whole requests, asks a gate about each, and passes on what it allows.

It speaks HTTP/1.1 and never passes bytes on unread: each request is parsed, checked and written anew, so that
the server behind it and this proxy cannot disagree about where a request ends. What peers can make it hold is
limited in size, number and time (`PeerLimits`). `ipfl.deploy.server.front` says which requests pass.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import h11
import httpx

READ_BYTES = 64 * 1024
MAX_HEAD_BYTES = 32 * 1024
"""Longest request line with headers. A node sends less than 2 KB."""
TLS_SECONDS = 10.0
"""For the TLS handshake of a new connection."""
DISCARD_SECONDS = 2.0
"""How long the rest of a refused request is read and thrown away, so that the peer gets to the reply."""
SMALL_BODY = 64 * 1024
"""Longer bodies count together, and are checked outside of the event loop."""
LARGE_AT_ONCE = 2
"""So many longer bodies are with the server behind the proxy at one time: it copies each."""
LOG_LINES_PER_MINUTE = 30
"""More refusals in one minute are only counted: nobody can fill the disk with log lines."""

OWN_HEADERS = frozenset(
    b"connection content-length expect forwarded host keep-alive proxy-authorization proxy-connection te "
    b"trailer transfer-encoding upgrade x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split()
)
"""Headers that are about one connection, or that only a proxy may set: never passed on."""
Headers = Sequence[tuple[bytes, bytes]]
"""Names (in lower case) and values."""


@dataclass(frozen=True)
class PeerLimits:
    """What a peer can make the proxy hold."""

    message_bytes: int = 16 * 2**20
    """Longest body of a request; Flower sends arrays in parts of 5 MB."""
    connections: int = 512
    connections_per_address: int = 64
    idle_seconds: float = 60.0
    """For the head of the next request, from the start of the connection or the end of the last reply."""
    transfer_seconds: float = 120.0
    """For the body of a request, and for the peer to take each part of a reply."""
    reply_seconds: float | None = 300.0
    """Between two parts of the reply of the server behind the proxy; None: as long as it takes."""

    @property
    def buffered_bytes(self) -> int:
        """All bodies of more than SMALL_BODY that are held at one time."""
        return 4 * self.message_bytes


class RefusedError(Exception):
    """A request that is not passed on.

    Args:
        status: HTTP status of the reply.
        reason: One line for the peer and the log.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Gate(Protocol):
    """Says which requests pass."""

    def check_head(self, method: bytes, path: bytes, headers: Headers) -> int:
        """How many bytes the body may have; raises RefusedError. Called before the body is read."""

    def check_body(self, path: bytes, body: bytes) -> None:
        """Raises RefusedError; called before the request is passed on, for long bodies in a thread."""

    def reply_status(self, status: int) -> int:
        """The status that the peer gets instead of the one of the server behind the proxy."""


class RefusalLog:
    """Prints why requests were refused, a limited number of lines per minute."""

    def __init__(self, print_line: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._print, self._clock = print_line, clock
        self._minute, self._lines, self._hidden = clock(), 0, 0

    def add(self, address: str, reason: str) -> None:
        """Prints or counts one refusal."""
        if self._clock() - self._minute >= 60:
            if self._hidden:
                self._print(f"refused {self._hidden} more requests in the minute before")
            self._minute, self._lines, self._hidden = self._clock(), 0, 0
        if self._lines < LOG_LINES_PER_MINUTE:
            self._lines += 1
            self._print(f"refused {address}: {reason}")
        else:
            self._hidden += 1


class Proxy:
    """Serves one port.

    Args:
        gate: Says which requests pass.
        limits: What a peer can make it hold.
        upstream: Connection to the server behind it.
        tls: The certificate; peers must speak TLS.
        log: Where refusals go.
    """

    def __init__(
        self,
        gate: Gate,
        limits: PeerLimits,
        upstream: httpx.AsyncClient,
        tls: ssl.SSLContext,
        log: RefusalLog,
    ):
        self.gate, self.limits, self.upstream, self.tls, self.log = gate, limits, upstream, tls, log
        self.buffered = 0
        self.large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._connections: Counter[str] = Counter()

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Opens the port."""
        return await asyncio.start_server(self.serve, host, port, limit=READ_BYTES)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until either side ends it."""
        address = str((writer.get_extra_info("peername") or ("",))[0])
        limits = self.limits
        if (
            self._connections.total() >= limits.connections
            or self._connections[address] >= limits.connections_per_address
        ):
            self.log.add(address, "too many connections")
            writer.transport.abort()
            return
        self._connections[address] += 1
        has_ended_well = False
        try:
            with suppress(OSError, TimeoutError, EOFError, h11.ProtocolError):
                # Not before: a connection counts from its first moment on, also without a handshake.
                await writer.start_tls(self.tls, ssl_handshake_timeout=TLS_SECONDS)
                connection = _Connection(self, reader, writer, address)
                while await connection.serve_request():
                    pass
                has_ended_well = True
        finally:
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]
            if has_ended_well:
                writer.close()
            else:  # at once, without waiting for a farewell of TLS: it does not count any more
                writer.transport.abort()


class _Connection:
    """One connection of a peer."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ):
        self._proxy, self._reader, self._writer, self._address = proxy, reader, writer, address
        self._limits = proxy.limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._held = 0

    async def serve_request(self) -> bool:
        """Serves one request; returns whether another one may follow."""
        try:
            async with asyncio.timeout(self._limits.idle_seconds):
                request = await self._next_event()
            if not isinstance(request, h11.Request):
                return False
            await self._check_and_pass_on(request)
            refused = None
        except h11.RemoteProtocolError as error:
            refused = error.error_status_hint, "not a valid HTTP request"
        except RefusedError as error:
            refused = error.status, error.reason
        finally:
            self._proxy.buffered, self._held = self._proxy.buffered - self._held, 0
        if refused is not None:  # the error is gone, and the body with it
            return await self._refuse(*refused)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _next_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    def _check_head(self, request: h11.Request) -> int:
        """How many bytes the body may have."""
        allowed = self._proxy.gate.check_head(request.method, request.target, list(request.headers))
        longest = min(allowed, self._limits.message_bytes)
        if self._http.they_are_waiting_for_100_continue:
            raise RefusedError(417, "Expect is not supported")
        length = next((value for name, value in request.headers if name == b"content-length"), b"0")
        if len(length) > 18 or int(length) > longest:
            raise RefusedError(413, f"a message of {length.decode()} bytes")
        return longest

    async def _read_body(self, longest: int) -> bytes:
        """The body; what is longer than SMALL_BODY counts as held until the request has been served."""
        proxy, body = self._proxy, bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > longest:
                raise RefusedError(413, f"a message of more than {longest} bytes")
            if len(body) > SMALL_BODY:
                more = len(body) - self._held
                if proxy.buffered + more > self._limits.buffered_bytes:
                    raise RefusedError(503, "too many messages at the same time")
                proxy.buffered, self._held = proxy.buffered + more, len(body)
        return bytes(body)

    async def _check_and_pass_on(self, request: h11.Request) -> None:
        longest = self._check_head(request)
        async with asyncio.timeout(self._limits.transfer_seconds):
            body = await self._read_body(longest)
        check = self._proxy.gate.check_body
        if len(body) <= SMALL_BODY:
            check(request.target, body)
            await self._pass_on(request, body)
            return
        async with self._proxy.large:
            await asyncio.to_thread(check, request.target, body)
            await self._pass_on(request, body)

    async def _pass_on(self, request: h11.Request, body: bytes) -> None:
        """Sends the request to the server behind the proxy, and its reply to the peer.

        Stops when the peer ends the connection before it has the reply.
        """
        passing = asyncio.ensure_future(self._exchange(request, body))
        watching = asyncio.ensure_future(self._reader.read(READ_BYTES))
        try:
            await asyncio.wait({passing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not passing.done() and not watching.result():
                raise EOFError("the peer has gone")
            await passing
        finally:
            for task in (passing, watching):
                task.cancel()
            await asyncio.gather(passing, watching, return_exceptions=True)
        if not watching.cancelled():  # the peer was quick: the start of its next request
            self._http.receive_data(watching.result())

    async def _exchange(self, request: h11.Request, body: bytes) -> None:
        sent = httpx.Request(
            request.method.decode("ascii"),
            self._proxy.upstream.base_url.copy_with(raw_path=request.target),
            headers=[(name, value) for name, value in request.headers if name not in OWN_HEADERS],
            content=body,
        )
        try:
            response = await self._proxy.upstream.send(sent, stream=True)
        except httpx.HTTPError:
            raise RefusedError(503, "the server behind the front does not answer") from None
        try:
            headers = [
                (name, value)
                for name, value in response.headers.raw
                if name.lower() not in OWN_HEADERS or name.lower() == b"content-length"
            ]
            status = self._proxy.gate.reply_status(response.status_code)
            await self._send(h11.Response(status_code=status, headers=headers))
            async for part in response.aiter_raw():
                await self._send(h11.Data(data=part))
            await self._send(h11.EndOfMessage())
        except httpx.HTTPError as error:  # too late for another status: the peer sees that the reply ended
            raise EOFError(str(error)) from error
        finally:
            await response.aclose()

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._writer.write(self._http.send(event) or b"")
        async with asyncio.timeout(self._limits.transfer_seconds):
            await self._writer.drain()

    async def _refuse(self, status: int, reason: str) -> bool:
        """Sends the refusal and ends the connection; returns that no other request may follow."""
        self._proxy.log.add(self._address, reason)
        text = reason.encode()
        headers = [
            ("content-type", "text/plain"),
            ("content-length", str(len(text))),
            ("connection", "close"),
        ]
        await self._send(h11.Response(status_code=status, headers=headers))
        await self._send(h11.Data(data=text))
        await self._send(h11.EndOfMessage())
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while await self._reader.read(READ_BYTES):
                    pass
        return False
