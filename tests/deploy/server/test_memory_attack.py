"""Bodies that parse into much more than they are, sent to a real server without a key."""

from __future__ import annotations

import os
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from tests.deploy.attacks import Caller, node_caller, node_key

from ipfl.deploy.federation_folder import ServerSettings
from ipfl.deploy.local_federation import LocalFederation, local_federation
from ipfl.deploy.processes import RunningProcess

MEGABYTE = 2**20
BODY_BYTES = 16 * MEGABYTE
MESSAGES, TREES, IDS = b"\x12\x00", b"\x1a\x00", b"\x12\x00"
"""Two bytes each: field 2 or 3, a message or text of no bytes."""
ATTACKS = (
    ("push-messages", MESSAGES * (BODY_BYTES // 2)),
    ("push-messages", TREES * (BODY_BYTES // 2)),
    ("pull-messages", IDS * (BODY_BYTES // 2)),
    ("push-object", b"\x0a\x00" * (BODY_BYTES // 2)),
    # Within the limit of the route's bytes, and no message at all to the last byte.
    ("push-messages", TREES * (MEGABYTE // 2)),
    # What is allowed, as long and as often as possible.
    ("push-object", b"\x22\xfb\xff\xff\x07" + b"x" * (BODY_BYTES - 5)),
)
REQUESTS = 45


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


class Heartbeats(threading.Thread):
    """A registered node that sends a heartbeat every tenth of a second, and notes how long each takes."""

    def __init__(self, caller: Caller, node: int):
        super().__init__(daemon=True)
        self.caller, self.node, self.seconds, self.is_over = caller, node, list[float](), threading.Event()

    def run(self) -> None:
        beat = SendNodeHeartbeatRequest(node=Node(node_id=self.node), heartbeat_interval=30)
        while not self.is_over.wait(0.1):
            start = time.monotonic()
            self.caller.fleet.SendNodeHeartbeat(beat)
            self.seconds.append(time.monotonic() - start)


def honest_node(federation: LocalFederation) -> Heartbeats:
    folder = federation.folder
    caller = node_caller(folder.node_folder(0), f"127.0.0.1:{ServerSettings.load(folder.settings_file).port}")
    own = public_key_to_bytes(node_key(folder.node_folder(0)).public_key())
    answer = caller.fleet.ActivateNode(ActivateNodeRequest(public_key=own, heartbeat_interval=30))
    return Heartbeats(caller, answer.node_id)


def attack(federation: LocalFederation, path: str, body: bytes) -> list[int]:
    """Sends a body REQUESTS times, from 15 connections at a time; returns the status of each answer."""
    folder = federation.folder
    trust = ssl.create_default_context(cafile=str(folder.ca_certificate))
    port = ServerSettings.load(folder.settings_file).port
    url, kind = f"https://localhost:{port}/v1/fleet/{path}", {"content-type": PROTOBUF_MEDIA_TYPE}

    def send(_: int) -> int:
        try:
            return httpx.post(url, content=body, headers=kind, verify=trust, timeout=120).status_code
        except httpx.HTTPError:  # refused, and closed before all was sent
            return 0

    with ThreadPoolExecutor(15) as pool:
        return list(pool.map(send, range(REQUESTS)))


@pytest.mark.slow
@pytest.mark.waits
def test_nobody_fills_the_memory_of_the_server_without_a_key(tmp_path: Path) -> None:
    """Before there was a bound: 4.3 GB, and heartbeats 18 s late."""
    with local_federation(tmp_path / "federation", 1) as federation:
        federation.start_server()
        processes = [federation.processes.running[name] for name in ("front", "superlink")]
        honest = honest_node(federation)
        honest.start()
        time.sleep(1)
        for path, body in ATTACKS:
            statuses = set(attack(federation, path, body))
            print(path, len(body), sorted(statuses), [round(peak_megabytes(p)) for p in processes])
            assert 200 not in statuses
            assert max(honest.seconds) < 2.0, path
            assert sum(map(peak_megabytes, processes)) < 500, path
        honest.is_over.set()
        honest.join(10)
        assert len(honest.seconds) > 20
