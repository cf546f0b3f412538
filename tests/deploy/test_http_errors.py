"""A server and a node as real processes, and between them a proxy that answers single requests with an error.

The front answers 503 where the SuperLink answers 500 (`test_front`), after which nodes try again; but a proxy
of somebody else may stand between a node and the front.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from ipfl.deploy.federation_folder import ServerFolder, ServerSettings
from ipfl.deploy.local_federation import LocalFederation, local_federation
from ipfl.deploy.processes import RunningProcess, find_free_port
from ipfl.deploy.server.proxy import Headers, PeerLimits, Proxy, RefusalLog, RefusedError
from ipfl.market.market_rows import with_typed_rows

CONFIG = """\
rounds = 1
[method]
name = "fedavg"
[task]
model = "softmax"
[train]
per_round = 1
epochs = 1
[aggregate]
min_providers = 1
"""

RUN_NODE = """\
import sys
from pathlib import Path
from ipfl.system.signals import exit_on_sigterm
from ipfl.deploy.node import supernode
from ipfl.deploy.federation_folder import NodeFolder

supernode.SILENT_SECONDS, supernode.RECONNECT_SECONDS = 10.0, 1.0
with exit_on_sigterm():
    supernode.run_node(NodeFolder(Path(sys.argv[1])), lambda line: print(line, flush=True))
"""
"""`ipfl deploy node` with less patience."""


class FailingGate:
    """Passes all requests on, but answers the next one of some routes with an error."""

    def __init__(self) -> None:
        self.errors: dict[bytes, int] = {}
        """HTTP status for the next request of a route; taken out when that request was answered."""
        self.seen: Counter[bytes] = Counter()

    def check_head(self, method: bytes, path: bytes, headers: Headers) -> int:
        self.seen[path] += 1
        if (status := self.errors.pop(path, None)) is not None:
            raise RefusedError(status, "an error on purpose")
        return 2**24

    def check_body(self, path: bytes, body: bytes) -> None:
        pass

    def reply_status(self, status: int) -> int:
        return status


@contextmanager
def failing_proxy(folder: ServerFolder, port: int) -> Iterator[FailingGate]:
    """Serves the port until the end of the block, with the server's own certificate."""
    gate = FailingGate()
    server = ServerSettings.load(folder.settings_file)

    is_over = threading.Event()

    async def serve() -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder.certificate, folder.private_key)
        trust = ssl.create_default_context(cafile=str(folder.ca_certificate))
        async with httpx.AsyncClient(base_url=f"https://localhost:{server.port}", verify=trust) as upstream:
            proxy = Proxy(gate, PeerLimits(message_bytes=2**24), upstream, tls, RefusalLog(print))
            async with await proxy.start("127.0.0.1", port):
                await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield gate
    finally:
        is_over.set()
        thread.join(30)


def start_node_behind_proxy(federation: LocalFederation, port: int) -> RunningProcess:
    node = federation.folder.node_folder(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 5)).astype(np.float32), np.arange(30) % 3
    np.savez(node.root / "data.npz", x=x, y=y)
    direct = ServerSettings.load(federation.folder.settings_file).port
    text = node.settings_file.read_text()
    assert f":{direct}" in text
    node.settings_file.write_text(text.replace(f":{direct}", f":{port}"))
    command = [sys.executable, "-c", RUN_NODE, str(node.root)]
    return federation.processes.start("node", command, os.environ, federation.folder.root)


def wait_for(what: Callable[[], bool], node: RunningProcess, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert node.is_alive(), node.last_lines(100)
        assert time.monotonic() < deadline, node.last_lines(100)
        time.sleep(0.1)


def play(federation: LocalFederation, out: Path) -> None:
    """A run in which the node must deliver in every round, and nothing happens that is worth an event."""
    lines: list[str] = []
    federation.run({"out": str(out), "nodes": 1, "wait": 120.0, "deadline": 60.0, "classes": 3}, lines.append)
    rounds = [with_typed_rows(json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()]
    delivered = [[seat.client for seat in line["seats"] if seat.delivered] for line in rounds]
    assert (delivered, [line["events"] for line in rounds]) == ([[0]], [()]), lines


def connections(node: RunningProcess) -> int:
    """How often the node has connected."""
    return node.last_lines(100).splitlines().count("client 0: connected")


@pytest.mark.slow
@pytest.mark.waits
def test_a_node_goes_on_after_errors_of_http(tmp_path: Path) -> None:
    """Errors after which Flower's SuperNode stays connected and does nothing any more."""
    heartbeat, pull = b"/v1/fleet/send-node-heartbeat", b"/v1/fleet/pull-messages"
    with local_federation(tmp_path / "federation", 1) as federation:
        federation.folder.config_file.write_text(CONFIG)
        federation.start_server()
        port = find_free_port()
        with failing_proxy(federation.folder, port) as gate:
            node = start_node_behind_proxy(federation, port)
            wait_for(lambda: gate.seen[heartbeat] >= 2 and gate.seen[pull] >= 2, node)
            # Flower tries neither again: its loop that asks for messages ends, then that of its heartbeats.
            # It sends the first of these when it has connected.
            gate.errors[pull] = 400
            wait_for(lambda: not gate.errors, node)
            gate.errors[heartbeat] = 400
            wait_for(lambda: connections(node) == 3 and not gate.errors, node)
            play(federation, tmp_path / "run")
            federation.processes.running["node"].terminate()  # before the proxy ends: it leaves the server
            node.popen.wait(30)
