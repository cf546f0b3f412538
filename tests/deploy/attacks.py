"""Attacks on a running federation: by somebody who only has `ca.crt`, by a registered node, by the server.

Each uses Flower's own clients, as an attacker would. `test_faults` runs them on its federation.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_disk
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ipfl.deploy.credentials import fingerprint
from ipfl.deploy.federation_folder import NodeFolder
from ipfl.deploy.local_federation import LocalFederation
from ipfl.deploy.operator import control_of
from ipfl.deploy.processes import RunningProcess
from ipfl.deploy.registry import Registry
from ipfl.deploy.settings_files import ServerSettings

EVIL_APP = '''\
"""An app that a server should not be able to run on nodes: it says where it ran, and reads their keys."""

import os
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from ipfl.deploy.run_log import print_line

app = ClientApp()
server = ServerApp()


@app.query()
def steal(message, context):
    memory = Path(context.node_config["memory"])
    (memory / "evil-was-here").touch()
    raise RuntimeError((memory.parent / "key").read_text())


@server.main()
def main(grid, context):
    nodes = sorted(grid.get_node_ids())
    messages = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    for reply in grid.send_and_receive(messages, timeout=60):
        print_line(reply.error.reason if reply.has_error() else "it ran")
    print_line("asked {} nodes".format(len(nodes)))
'''


class Caller:
    """The clients of Flower's three interfaces for one address.

    Args:
        address: Host and port.
        ca_certificate: All that every node has.
        interceptors: Signs requests, or adds headers.
    """

    def __init__(self, address: str, ca_certificate: Path, interceptors: Sequence[Any] = ()):
        def connect(kind: Any) -> Any:
            return kind.from_server_address(
                address, False, ca_certificate.read_bytes(), interceptors=list(interceptors)
            )

        self.control, self.runtime = connect(ControlHttpClient), connect(RuntimeHttpClient)
        self.fleet = connect(FleetHttpClient)


def status_of(call: Callable[[], object]) -> int:
    """The status by which a call is refused; 200 if it is not."""
    try:
        call()
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def write_evil_app(like: Path, folder: Path) -> Path:
    """Makes the folder of the evil app from that of ours."""
    shutil.copytree(like, folder, dirs_exist_ok=True)
    description = folder / "pyproject.toml"
    text = description.read_text().replace("ipfl.deploy.server_app:app", "evil:server")
    lines = ['clientapp = "evil:app"' if line.startswith("clientapp") else line for line in text.splitlines()]
    description.write_text("\n".join(lines) + "\n")
    (folder / "evil.py").write_text(EVIL_APP)
    return folder


def operator_calls(caller: Caller, evil: bytes, victim: int) -> dict[str, int]:
    """Everything that an operator could do, with the status of the answer."""
    key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    fab = Fab(hash_str=hashlib.sha256(evil).hexdigest(), content=evil)
    control, runtime = caller.control, caller.runtime
    calls: dict[str, Callable[[], object]] = {
        "run an app": lambda: control.StartRun(StartRunRequest(fab=fab)),
        "register a key": lambda: control.RegisterNode(RegisterNodeRequest(public_key=key)),
        "unregister a node": lambda: control.UnregisterNode(UnregisterNodeRequest(node_id=victim)),
        "list nodes": lambda: control.ListNodes(ListNodesRequest()),
        "list runs": lambda: control.ListRuns(ListRunsRequest()),
        "stop a run": lambda: control.StopRun(StopRunRequest(run_id=1)),
        "read a log": lambda: next(control.StreamLogs(StreamLogsRequest(run_id=1))),
        "take a task": lambda: runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["serverapp"])),
    }
    return {name: status_of(call) for name, call in calls.items()}


def node_ids(federation: LocalFederation) -> dict[int, int]:
    """Flower's id of each client's node."""
    clients = Registry.load(federation.folder.accounts_file).clients_by_key()
    with control_of(federation.folder) as control:
        return {clients[fingerprint(key)]: node for node, key in control.nodes().items()}


def attack_as_stranger(federation: LocalFederation) -> None:
    """Somebody on the network with `ca.crt`, and another user of the server's machine."""
    folder = federation.folder
    settings = ServerSettings.load(folder.settings_file)
    registry = Registry.load(folder.accounts_file)
    victim = node_ids(federation)[registry.accounts[0].client]
    evil = build_fab_from_disk(write_evil_app(folder.app, folder.root / "evil"))
    public, runs = f"127.0.0.1:{settings.port}", f"127.0.0.1:{settings.run_port}"
    answers = operator_calls(Caller(public, folder.ca_certificate), evil, victim)
    assert set(answers.values()) == {404}, answers  # on the public port there are no such routes
    answers = operator_calls(Caller(runs, folder.ca_certificate), evil, victim)
    assert answers.pop("take a task") == 401  # Flower has a secret for it
    assert set(answers.values()) == {404}, answers
    with control_of(folder) as control:
        assert {fingerprint(key) for key in control.nodes().values()} == set(registry.clients_by_key())
    # A key of one's own, and none at all.
    pair = ec.generate_private_key(ec.SECP384R1())
    stranger = Caller(public, folder.ca_certificate, [NodeAuthHttpInterceptor(pair, pair.public_key())])
    own_key = public_key_to_bytes(pair.public_key())
    activate = ActivateNodeRequest(public_key=own_key, heartbeat_interval=30)
    assert status_of(lambda: stranger.fleet.ActivateNode(activate)) not in (200, 500)
    pull = PullMessagesRequest(node=Node(node_id=victim))
    for caller in (stranger, Caller(public, folder.ca_certificate)):
        assert status_of(lambda caller=caller: caller.fleet.PullMessages(pull)) == 401  # type: ignore[misc]
    assert stat.S_IMODE(folder.database.stat().st_mode) == 0o600
    mode = folder.socket.stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    _check_listeners(settings)


def _check_listeners(settings: ServerSettings) -> None:
    """Only the public port is bound to what the settings say; the operator port is on loopback."""
    found = [str(address[4][0]) for address in socket.getaddrinfo(socket.gethostname(), None)]
    own = next((address for address in found if not address.startswith(("127.", "::1"))), None)
    for port in (settings.port, settings.run_port):
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        if own is not None:
            with pytest.raises(OSError):
                socket.create_connection((own, port), timeout=2)


def attack_as_node(federation: LocalFederation, attacker: int, victim: int) -> None:
    """A registered node that speaks for others, and asks for what operators have."""
    folder = federation.folder
    settings = ServerSettings.load(folder.settings_file)
    own, other = (node_ids(federation)[client] for client in (attacker, victim))
    caller = node_caller(folder.node_folder(attacker), f"127.0.0.1:{settings.port}")
    evil = build_fab_from_disk(folder.root / "evil")
    assert set(operator_calls(caller, evil, other).values()) == {404}
    own_key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
    fleet = caller.fleet
    assert status_of(lambda: fleet.RegisterNode(RegisterNodeFleetRequest(public_key=own_key))) == 404
    assert status_of(lambda: fleet.UnregisterNode(UnregisterNodeFleetRequest(node_id=other))) == 404
    # As itself it is served; as another node it is not.
    for node, status in ((own, 200), (other, 401)):
        pull = PullMessagesRequest(node=Node(node_id=node))
        assert status_of(lambda pull=pull: fleet.PullMessages(pull)) == status  # type: ignore[misc]
    beat = SendNodeHeartbeatRequest(node=Node(node_id=other), heartbeat_interval=30)
    assert status_of(lambda: fleet.SendNodeHeartbeat(beat)) == 401
    # As the server to another node, and as another node to the server.
    for sender, receiver, reply_to in ((1, other, ""), (other, 1, "m")):
        metadata = Metadata(
            run_id=1,
            message_id="m",
            src_node_id=sender,
            dst_node_id=receiver,
            reply_to_message_id=reply_to,
            message_type="query",
        )
        push = PushMessagesRequest(
            node=Node(node_id=own),
            messages_list=[Message(metadata=metadata)],
            message_object_trees=[ObjectTree(object_id="m")],
        )
        assert status_of(lambda push=push: fleet.PushMessages(push)) == 400  # type: ignore[misc]


def node_key(node: NodeFolder) -> ec.EllipticCurvePrivateKey:
    """The private key in a node's folder."""
    pair = serialization.load_ssh_private_key(node.private_key.read_bytes(), None)
    assert isinstance(pair, ec.EllipticCurvePrivateKey)
    return pair


def node_caller(node: NodeFolder, address: str) -> Caller:
    """What a registered node can send."""
    pair = node_key(node)
    return Caller(address, node.ca_certificate, [NodeAuthHttpInterceptor(pair, pair.public_key())])


MEGABYTE = 2**20
LARGE_BODIES = (
    # Parses into much more than it is: each two bytes are a text or a message of no bytes.
    ("pull-messages", b"\x12\x00" * (8 * MEGABYTE)),
    # The same, as long as the route allows.
    ("push-messages", b"\x1a\x00" * (MEGABYTE // 2)),
    # What is allowed: one field of 16 MB.
    ("push-object", b"\x22\xfb\xff\xff\x07" + b"x" * (16 * MEGABYTE - 5)),
)


class Heartbeats(threading.Thread):
    """A registered node that sends a heartbeat every tenth of a second, and notes how long each takes."""

    def __init__(self, node: NodeFolder, address: str):
        super().__init__(daemon=True)
        self.caller, self.seconds, self.is_over = node_caller(node, address), list[float](), threading.Event()
        own = public_key_to_bytes(node_key(node).public_key())
        activate = ActivateNodeRequest(public_key=own, heartbeat_interval=30)
        self.node = self.caller.fleet.ActivateNode(activate).node_id

    def run(self) -> None:
        beat = SendNodeHeartbeatRequest(node=Node(node_id=self.node), heartbeat_interval=30)
        while not self.is_over.wait(0.1):
            start = time.monotonic()
            self.caller.fleet.SendNodeHeartbeat(beat)
            self.seconds.append(time.monotonic() - start)
        self.caller.fleet.DeactivateNode(DeactivateNodeRequest(node_id=self.node))


def peak_megabytes(process: RunningProcess) -> float:
    """The most memory that a process has held, with the one that it was started by."""
    peak = 0.0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getpgid(int(status.parent.name)) != process.popen.pid:
                continue
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it has ended
        peak += int(lines.get("VmHWM", "0 kB").split()[0]) / 1024
    return peak


def attack_memory(federation: LocalFederation, honest: int) -> None:
    """Large bodies without a key. Before there was a bound: 4.3 GB, and heartbeats 18 s late."""
    folder = federation.folder
    port = ServerSettings.load(folder.settings_file).port
    trust = ssl.create_default_context(cafile=str(folder.ca_certificate))
    beating = Heartbeats(folder.node_folder(honest), f"127.0.0.1:{port}")
    beating.start()

    def send(route: str, body: bytes) -> int:
        url, kind = f"https://localhost:{port}/v1/fleet/{route}", {"content-type": PROTOBUF_MEDIA_TYPE}
        try:
            return httpx.post(url, content=body, headers=kind, verify=trust, timeout=120).status_code
        except httpx.HTTPError:  # refused, and closed before all was sent
            return 0

    for route, body in LARGE_BODIES:
        with ThreadPoolExecutor(15) as pool:
            statuses = set(pool.map(send, [route] * 30, [body] * 30))
        assert 200 not in statuses
        assert max(beating.seconds) < 2.0, route
        peaks = [peak_megabytes(federation.processes.running[name]) for name in ("front", "superlink")]
        assert sum(peaks) < 500, (route, peaks)
    beating.is_over.set()
    beating.join(10)
    assert len(beating.seconds) > 5


def attack_as_server(federation: LocalFederation, clients: Sequence[int]) -> None:
    """A server that runs another app than the one that the operators of the nodes have installed."""
    folder = federation.folder
    installed = folder.app.rename(folder.root / "installed-app")
    (folder.root / "evil").rename(folder.app)
    lines: list[str] = []
    try:
        federation.run({"out": str(folder.root / "evil-run"), "nodes": len(clients)}, lines.append)
    finally:
        shutil.rmtree(folder.app)
        installed.rename(folder.app)
    assert lines[-1:] == [f"asked {len(clients)} nodes"], lines
    refusals = [line for line in lines if "refused: the server runs app" in line]
    assert len(refusals) == len(clients), lines
    assert not any("PRIVATE KEY" in line or line == "it ran" for line in lines)
    for client in clients:
        node = folder.node_folder(client)
        assert not (node.root / "memory" / "evil-was-here").exists()
        assert not (node.flower_home / "apps").exists()
