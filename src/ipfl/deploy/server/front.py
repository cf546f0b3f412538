"""The server's front: the only process of a server that other machines reach.

Flower's SuperLink serves nodes, operators and its own tasks on one address, and asks operators for nothing.
Here it listens on a Unix socket that only its user can open (`superlink_process`), who is the operator, and
this process passes requests to it:

- on the public port what nodes need, `NODE_ROUTES`. The SuperLink checks each node's signature as before;
- on another port, loopback only, what the ServerApp of a run needs, `TASK_ROUTES`, for which the SuperLink
  asks for a secret of its own.

Both ports speak TLS with the server's certificate. Nothing else passes: requests must name one of these
routes letter by letter.

    python -m ipfl.deploy.server.front SERVER-FOLDER
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from ipfl.core import ClientId
from ipfl.deploy.federation_folder import ServerFolder
from ipfl.deploy.registry import client_lookup
from ipfl.deploy.server.parsing import TooManyFieldsError, count_fields
from ipfl.deploy.server.proxy import (
    SMALL_BODY,
    Gate,
    Headers,
    PeerLimits,
    Proxy,
    RefusalLog,
    RefusedError,
)
from ipfl.deploy.settings_files import ServerSettings
from ipfl.engines.flower.flwr_internals import (
    SUPERLINK_NODE_ID,
    read_pushed_message,
    request_type,
    signing_key,
)

NODE_ROUTES = frozenset(
    b"/v1/fleet/" + name
    for name in (
        b"activate-node deactivate-node send-node-heartbeat pull-messages push-messages get-run get-fab "
        b"push-object pull-object confirm-message-received"
    ).split()
)
TASK_ROUTES = frozenset(
    b"/v1/runtime/" + name
    for name in (
        b"acquire-task send-task-heartbeat pull-task-input push-task-output push-object pull-object "
        b"confirm-message-received push-logs push-messages pull-messages get-nodes"
    ).split()
)
PUSH_MESSAGES, PUSH_OBJECT = b"/v1/fleet/push-messages", b"/v1/fleet/push-object"
LONG_BODIES = {PUSH_OBJECT: sys.maxsize, PUSH_MESSAGES: 2**20}
"""Longest body of a route, before the limit of a message: one part of a model; ids of its parts. All other
requests of nodes, and those of whoever has no account, are a few numbers (SMALL_BODY)."""
NODE_FIELDS = 20_000
"""Most fields of a request of a node, which parses into 5 MB then: a model of 400 GB has so many parts."""
TASK_FIELDS = 1_000_000
"""The same of a ServerApp, which sends the messages of a phase to all nodes in one request."""
START_SECONDS = 60.0
"""How long the SuperLink may take until it answers."""
RUN_MESSAGE_BYTES = 64 * 2**20
"""Longest message of a ServerApp, which sends arrays in parts of 5 MB."""


def check_reply(body: bytes) -> None:
    """Refuses what a node may not push: anything but one reply of its own to the server.

    The SuperLink knows which node it talks to, but believes the message inside about its sender. A message
    that is no reply but says that it comes from the server would be given to any other node.
    """
    try:
        message = read_pushed_message(body)
    except ValueError as error:
        raise RefusedError(400, str(error)) from None
    if not message.is_reply or message.sender != message.node or message.receiver != SUPERLINK_NODE_ID:
        raise RefusedError(400, "not a reply of this node to the server")


def check_size(path: bytes, body: bytes, fields: int) -> None:
    """Refuses what would parse into more than `fields` fields: whoever sends it, and before it is parsed."""
    try:
        count_fields(body, request_type(path.decode()), fields)
    except ValueError as error:
        status = 413 if isinstance(error, TooManyFieldsError) else 400
        raise RefusedError(status, f"{_printable(path)}: {error}") from None


class NodeGate:
    """What passes on the public port.

    Args:
        client_of: Finds the client with a public key; None: no account has it.
    """

    def __init__(self, client_of: Callable[[bytes], ClientId | None]):
        self._client_of = client_of

    def check_head(self, method: bytes, path: bytes, headers: Headers) -> int:
        """Refuses all but the routes of nodes, and long bodies without the signature of an account."""
        if method != b"POST" or path not in NODE_ROUTES:
            raise RefusedError(404, f"no such route for nodes: {_printable(method + b' ' + path)}")
        if path not in LONG_BODIES:
            return SMALL_BODY
        key = signing_key(dict(headers))
        return SMALL_BODY if key is None or self._client_of(key) is None else LONG_BODIES[path]

    def check_body(self, path: bytes, body: bytes) -> None:
        """Refuses what parses into too much, and messages in the name of others."""
        check_size(path, body, NODE_FIELDS)
        if path == PUSH_MESSAGES:
            check_reply(body)

    def reply_status(self, status: int) -> int:
        """503 for 500: a SuperNode tries again after 503, and after 500 it never answers any more."""
        return 503 if status == 500 else status


class RunGate:
    """What passes on the port for the processes of runs; the SuperLink asks each for a secret of its own."""

    def check_head(self, method: bytes, path: bytes, headers: Headers) -> int:
        """Refuses all but the routes of tasks."""
        if method != b"POST" or path not in TASK_ROUTES:
            raise RefusedError(404, f"no such route for runs: {_printable(method + b' ' + path)}")
        return RUN_MESSAGE_BYTES

    def check_body(self, path: bytes, body: bytes) -> None:
        """Refuses what parses into too much."""
        check_size(path, body, TASK_FIELDS)

    def reply_status(self, status: int) -> int:
        """The same."""
        return status


def _printable(text: bytes) -> str:
    """For a log: no control characters, and not too long."""
    return ascii(text[:80].decode("latin-1"))[1:-1]


async def wait_for_superlink(upstream: httpx.AsyncClient) -> None:
    """Returns when the SuperLink answers.

    Raises:
        TimeoutError: It does not.
    """
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                if (await upstream.get("/health")).status_code == 200:
                    return
            except httpx.HTTPError:
                await asyncio.sleep(0.1)


def superlink_client(socket: str, reply_seconds: float | None) -> httpx.AsyncClient:
    """A connection to the SuperLink's Unix socket."""
    transport = httpx.AsyncHTTPTransport(
        uds=socket,
        retries=1,
        # A SuperLink closes a connection that was not used for 5 s.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2),
    )
    timeout = httpx.Timeout(60, connect=5, read=reply_seconds, pool=None)
    return httpx.AsyncClient(transport=transport, base_url="http://superlink", timeout=timeout)


async def run_front(folder: ServerFolder) -> None:
    """Opens both ports and serves them until the process is ended.

    The working directory is that of the SuperLink's socket, whose path may not be long.
    """
    settings = ServerSettings.load(folder.settings_file)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(folder.certificate, folder.private_key)
    log = RefusalLog(_print_line)
    node_gate = NodeGate(client_lookup(folder.accounts_file))
    node_limits = PeerLimits(
        connections=settings.max_connections, connections_per_address=settings.max_connections_per_address
    )
    run_limits = PeerLimits(message_bytes=RUN_MESSAGE_BYTES, connections_per_address=512, reply_seconds=None)
    ports: tuple[tuple[str, str, int, Gate, PeerLimits], ...] = (
        ("nodes", settings.bind, settings.port, node_gate, node_limits),
        ("runs", "127.0.0.1", settings.run_port, RunGate(), run_limits),
    )
    await wait_for_superlink(superlink_client(folder.socket.name, 5))
    servers = []
    for who, host, port, gate, limits in ports:
        proxy = Proxy(gate, limits, superlink_client(folder.socket.name, limits.reply_seconds), tls, log)
        servers.append(await proxy.start(host, port))
        _print_line(f"{who}: {host}:{port}")
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _print_line(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(run_front(ServerFolder(Path(sys.argv[1]))))
    except TimeoutError:
        sys.exit("error: the SuperLink does not answer; its log may say why")
