"""The front and its proxy against a small server on a Unix socket; `test_faults` has the real SuperLink."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from ipfl.deploy.credentials import write_certificates
from ipfl.deploy.processes import find_free_port
from ipfl.deploy.server.front import (
    NODE_ROUTES,
    TASK_ROUTES,
    NodeGate,
    RunGate,
    check_reply,
    superlink_client,
    wait_for_superlink,
)
from ipfl.deploy.server.proxy import LOG_LINES_PER_MINUTE, Gate, PeerLimits, Proxy, RefusalLog, RefusedError
from ipfl.deploy.server.superexec_process import start_task
from ipfl.deploy.settings_files import ServerSettings

OPERATOR_ROUTE = "/v1/control/start-run"
"""It passes nowhere: operators use the SuperLink's own socket."""
LIMITS = PeerLimits(message_bytes=10_000, connections=6, connections_per_address=4, idle_seconds=0.5)


NODES = NodeGate({b"known": 3}.get)


def long_body(length: int) -> bytes:
    """A valid body of `push-object`: `object_content` (field 4) of three bytes of head and some content."""
    return b"\x22" + bytes([(length - 3) & 0x7F | 0x80, (length - 3) >> 7]) + b"x" * (length - 3)


class Upstream:
    """A server that notes each request, and answers as it was told."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-own: 1\r\n\r\nok"
        self.parts: list[bytes] = []
        self.left: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = dict(
                    line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:] if b": " in line
                )
                body = await reader.readexactly(int(lines.get(b"content-length", b"0")))
                self.requests.append(head + body)
                writer.write(self.reply)
                await writer.drain()
                for part in self.parts:
                    await asyncio.sleep(0.05)
                    writer.write(part)
                    await writer.drain()
                if self.reply.startswith(b"HTTP/1.1 200 LATER"):
                    await reader.read()  # until the front gives up
                    self.left.append("gone")
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Place:
    """A front with its upstream, and clients for it."""

    def __init__(self, upstream: Upstream, port: int, trust: ssl.SSLContext, lines: list[str]):
        self.upstream, self.port, self.trust, self.lines = upstream, port, trust, lines

    async def post(self, path: str, body: bytes = b"", **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(verify=self.trust) as client:
            return await client.post(f"https://localhost:{self.port}{path}", content=body, headers=headers)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("localhost", self.port, ssl=self.trust)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


@pytest.fixture
def run(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Place], Awaitable[None]], Gate, PeerLimits], None]:
    """Runs an async test against a front with this gate and these limits."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    monkeypatch.setattr("ipfl.deploy.server.proxy.DISCARD_SECONDS", 0.2)

    @asynccontextmanager
    async def open_place(gate: Gate, limits: PeerLimits) -> AsyncIterator[Place]:
        upstream, lines = Upstream(), list[str]()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        port = find_free_port()
        client = superlink_client("up.sock", limits.reply_seconds)
        proxy = Proxy(gate, limits, client, tls, RefusalLog(lines.append))
        async with (
            await asyncio.start_unix_server(upstream.serve, "up.sock"),
            await proxy.start("127.0.0.1", port),
            client,
        ):
            trust = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
            yield Place(upstream, port, trust, lines)

    def run_test(test: Callable[[Place], Awaitable[None]], gate: Gate, limits: PeerLimits = LIMITS) -> None:
        async def whole() -> None:
            async with asyncio.timeout(30), open_place(gate, limits) as place:
                await test(place)

        asyncio.run(whole())

    return run_test


def test_nodes_reach_their_routes_and_nothing_else(run: Callable[..., None]) -> None:
    async def check(place: Place) -> None:
        reply = await place.post("/v1/fleet/pull-messages", b"\x0a\0", **{"flwr-signature": "s", "TE": "x"})
        assert (reply.status_code, reply.content, reply.headers["x-own"]) == (200, b"ok", "1")
        passed = place.upstream.requests.pop()
        assert passed.startswith(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        assert passed.endswith(b"\r\n\r\n\x0a\0")
        assert b"flwr-signature: s" in passed.lower()  # SuperLink checks it
        assert b"te: x" not in passed.lower()
        refused = [
            OPERATOR_ROUTE,
            *(path.decode() for path in TASK_ROUTES),
            "/v1/fleet/register-node",
            "/v1/fleet/unregister-node",
            "/v1/fleet/pull-messages/",
            "/v1/fleet/pull-messages?x=1",
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%70ull-messages",
            f"/{OPERATOR_ROUTE}",
            "/docs",
            "/openapi.json",
            "/health",
            "/",
        ]
        for path in refused:
            reply = await place.post(path)
            assert reply.status_code == 404, path
        async with httpx.AsyncClient(verify=place.trust) as client:
            reply = await client.get(f"https://localhost:{place.port}/v1/fleet/pull-messages")
            assert reply.status_code == 404
        assert place.upstream.requests == []
        assert len(place.lines) == min(len(refused) + 1, LOG_LINES_PER_MINUTE)

    run(check, NODES)


def test_the_port_for_runs_passes_what_tasks_need(run: Callable[..., None]) -> None:
    async def check(place: Place) -> None:
        for path in ("/v1/fleet/pull-messages", OPERATOR_ROUTE, "/v1/runtime/create-task"):
            assert (await place.post(path)).status_code == 404
        assert place.upstream.requests == []
        # Tasks have secrets of Flower's own, which the SuperLink checks.
        assert (await place.post("/v1/runtime/acquire-task")).status_code == 200

    run(check, RunGate())


def test_long_messages_are_refused_whatever_they_say_of_their_length(run: Callable[..., None]) -> None:
    async def check(place: Place) -> None:
        path = "/v1/fleet/push-object"
        assert (await place.post(path, long_body(10_000))).status_code == 200
        assert (await place.post(path, long_body(10_001))).status_code == 413

        async def unknown_length() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 1000

        async with httpx.AsyncClient(verify=place.trust) as client:
            reply = await client.post(f"https://localhost:{place.port}{path}", content=unknown_length())
        assert reply.status_code == 413
        assert len(place.upstream.requests) == 1
        assert (await place.post(path, b"", **{"x-long": "x" * 100_000})).status_code == 431

    run(check, NODES)


def test_silent_and_slow_connections_are_closed(run: Callable[..., None]) -> None:
    async def check(place: Place) -> None:
        head = b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: x\r\n"
        for said in (b"", head[:20], head):
            reader, writer = await place.connect()
            writer.write(said)
            assert await reader.read() == b""  # after idle_seconds
            writer.close()
        reader, writer = await place.connect()
        writer.write(head + b"content-length: 5\r\n\r\nab")
        assert await reader.read() == b""  # after transfer_seconds
        writer.close()
        with socket.create_connection(("127.0.0.1", place.port)):  # no TLS at all: counts, too
            assert (await place.post("/v1/fleet/get-run")).status_code == 200

    run(check, NODES, replace(LIMITS, transfer_seconds=0.5))


def test_one_address_has_a_limited_number_of_connections(run: Callable[..., None]) -> None:
    async def check(place: Place) -> None:
        silent = [socket.create_connection(("127.0.0.1", place.port)) for _ in range(4)]
        await asyncio.sleep(0.1)
        with pytest.raises(httpx.HTTPError):
            await place.post("/v1/fleet/get-run")
        assert place.lines == ["refused 127.0.0.1: too many connections"]
        silent.pop().close()
        await asyncio.sleep(0.1)
        assert (await place.post("/v1/fleet/get-run")).status_code == 200
        for one in silent:
            one.close()

    run(check, NODES, replace(LIMITS, idle_seconds=20))


def test_two_requests_in_one_are_not_passed_on(run: Callable[..., None]) -> None:
    """What could make two servers disagree about the end of a request."""

    async def check(place: Place) -> None:
        head = b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: x\r\n"
        inner = b"POST /v1/control/start-run HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
        for trick in (
            b"content-length: 4\r\ncontent-length: 0\r\n\r\n" + inner,
            b"transfer-encoding: chunked, identity\r\n\r\n" + inner,
            b"content-length: +4\r\n\r\n" + inner,
            b"content-length : 4\r\n\r\n" + inner,
            b"x: y\nz: w\r\n\r\x00\n\r\n" + inner,
        ):
            reader, writer = await place.connect()
            writer.write(head + trick)
            status = (await reader.read()).split()[1]
            assert status in (b"400", b"501"), trick
            writer.close()
        reader, writer = await place.connect()
        chunked = b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n"
        writer.write(head + chunked + inner)
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 ") <= 2
        assert not any(b"control" in request for request in place.upstream.requests)
        writer.close()

    run(check, NODES)


def test_one_connection_carries_many_requests(run: Callable[..., None]) -> None:
    """Also those that come while the last reply is still on its way."""

    async def check(place: Place) -> None:
        async with httpx.AsyncClient(verify=place.trust) as client:
            url = f"https://localhost:{place.port}/v1/fleet/push-object"
            for number in range(50):
                reply = await client.post(url, content=long_body(200 + number))
                assert (reply.status_code, reply.content) == (200, b"ok")
        reader, writer = await place.connect()
        one = b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n\x0a\0"
        writer.write(one)
        await asyncio.sleep(0.01)
        writer.write(one * 2)
        await writer.drain()
        received = b""
        while received.count(b"\r\n\r\nok") < 3:
            received += await reader.read(1000)
        writer.close()
        assert len(place.upstream.requests) == 53

    run(check, NODES)


def test_replies_stream_and_end_when_the_peer_goes(run: Callable[..., None]) -> None:
    async def check(place: Place) -> None:
        place.upstream.reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        place.upstream.parts = [b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"]
        assert (await place.post("/v1/runtime/pull-object")).content == b"onetwo"
        place.upstream.reply = b"HTTP/1.1 200 LATER\r\ntransfer-encoding: chunked\r\n\r\n"
        place.upstream.parts = []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(place.post("/v1/runtime/pull-object"), 0.3)
        await asyncio.sleep(0.3)
        assert place.upstream.left == ["gone"]

    run(check, RunGate(), replace(LIMITS, reply_seconds=None))


def test_a_failing_server_makes_nodes_try_again(run: Callable[..., None]) -> None:
    """503 is what a SuperNode tries again after; after 500 it stays connected and never answers."""

    async def check(place: Place) -> None:
        place.upstream.reply = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
        assert (await place.post("/v1/fleet/get-run")).status_code == 503
        place.upstream.reply = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
        assert (await place.post("/v1/fleet/get-run")).status_code == 401
        os.unlink("up.sock")
        await asyncio.sleep(2.1)  # longer than connections to it are kept
        assert (await place.post("/v1/fleet/get-run")).status_code == 503

    run(check, NODES)


def push(node: int, sender: int, receiver: int = 1, reply_to: str = "m", messages: int = 1) -> bytes:
    metadata = Metadata(src_node_id=sender, dst_node_id=receiver, reply_to_message_id=reply_to)
    return PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[Message(metadata=metadata)] * messages,
        message_object_trees=[ObjectTree()],
    ).SerializeToString()


def test_a_node_pushes_only_replies_of_its_own() -> None:
    check_reply(push(node=7, sender=7))
    for body in (
        push(node=7, sender=8),  # in the name of another node
        push(node=7, sender=1, receiver=8, reply_to=""),  # in the name of the server, to another node
        push(node=7, sender=7, receiver=8),
        push(node=7, sender=7, reply_to=""),
        push(node=7, sender=7, messages=2),
        push(node=7, sender=7, messages=0),
        b"\xff\xff",
        b"",
    ):
        with pytest.raises(RefusedError):
            NODES.check_body(b"/v1/fleet/push-messages", body)


def test_refusals_cannot_fill_the_log() -> None:
    lines: list[str] = []
    now = [0.0]
    log = RefusalLog(lines.append, lambda: now[0])
    for _ in range(1000):
        log.add("10.0.0.1", "x")
    assert len(lines) == LOG_LINES_PER_MINUTE
    now[0] = 61.0
    log.add("10.0.0.1", "y")
    assert lines[-2:] == ["refused 970 more requests in the minute before", "refused 10.0.0.1: y"]


def test_the_token_of_a_task_is_not_on_its_command_line(tmp_path: Path) -> None:
    program = (
        "import sys; print(sys.argv[1:]); print(open(sys.argv[sys.argv.index('--token-file') + 1]).read())"
    )
    with (tmp_path / "out").open("wb") as out:
        arguments = [sys.executable, "-c", program, "--address", "a", "--token", "secret", "--insecure"]
        assert start_task(arguments, stdout=out).wait(30) == 0
    command, token = (tmp_path / "out").read_text().splitlines()
    assert token == "secret"
    assert "secret" not in command
    assert command.startswith("['--address', 'a', '--token-file', '/dev/fd/")
    assert command.endswith("'--insecure']")


def test_the_front_waits_for_the_superlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ipfl.deploy.server.front.START_SECONDS", 0.3)

    async def check() -> None:
        async with superlink_client("none.sock", 5) as client:
            with pytest.raises(TimeoutError):
                await wait_for_superlink(client)

    asyncio.run(check())


def test_the_documents_say_what_the_settings_are() -> None:
    docs = Path(__file__).parents[3] / "docs"
    model = (docs / "threat-model.md").read_text()
    settings, limits = ServerSettings(), PeerLimits()
    assert f"A message is at most {limits.message_bytes >> 20} MB" in model
    assert f"{settings.max_connections_per_address} connections come from one address" in model
    assert f"and {settings.max_connections} from all" in model
    assert f"bring a request within {limits.idle_seconds:.0f} s is closed" in model
    assert len(NODE_ROUTES) == 10
    assert "passes ten requests by their exact names" in model
    guide = (docs / "deploy.md").read_text()
    assert "passes the ten requests that nodes make" in guide
    assert f"at most {LOG_LINES_PER_MINUTE} lines per minute" in guide
    assert f"on port {settings.port} for nodes and on port {settings.run_port} of its own machine" in guide
