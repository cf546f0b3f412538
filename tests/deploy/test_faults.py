"""Real faults and attacks in a federation on loopback: all on one server.

Four clients, one cluster, and a seat for everybody, so that each connected client trains in every round.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.attacks import attack_as_node, attack_as_server, attack_as_stranger, attack_memory
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.core.rounds import Event, Seat
from ipfl.deploy.credentials import write_certificates, write_key_pair
from ipfl.deploy.federation_folder import NodeFolder
from ipfl.deploy.local_federation import LocalFederation, local_federation
from ipfl.deploy.node.supernode import (
    KeyRefusedError,
    has_connected,
    prepare_node,
    start_node,
    start_supernode,
)
from ipfl.deploy.operator import RunValue, control_of
from ipfl.deploy.processes import find_free_port
from ipfl.errors import InputError
from ipfl.ledger.lines import check_line
from ipfl.ledger.store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.waits]

CONFIG = """\
rounds = 5
[method]
name = "ipfl-plus"
clusters = 1
payment.rule = "paper"
[task]
model = "softmax"
[train]
per_round = 4
epochs = 1
"""


class BackgroundRun:
    """A run in a thread, with the lines that it printed."""

    def __init__(self, federation: LocalFederation, **settings: RunValue):
        self.lines: list[str] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(federation, settings))
        self._thread.start()

    def _run(self, federation: LocalFederation, settings: dict[str, RunValue]) -> None:
        try:
            federation.run(settings, self.lines.append)
        except Exception as error:
            self.error = error

    def wait_for(self, what: Callable[[], bool], seconds: float = 300) -> None:
        wait_until(lambda: what() or not self._thread.is_alive(), seconds)
        assert what(), (self.lines, self.error)

    def has_printed(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def join(self, seconds: float = 300) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.lines


def wait_until(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.1)


def start_foreign_node(
    federation: LocalFederation, folder: NodeFolder, name: str, *, worker: bool = True
) -> Callable[[], bool]:
    """Starts a node that the federation did not create; returns whether it has connected.

    One that the server refuses needs no worker.
    """
    processes, settings = federation.processes, prepare_node(folder)
    if worker:
        supernode = start_node(processes, folder, settings, f"-{name}")
    else:
        supernode = start_supernode(processes, folder, settings, find_free_port(), f"-{name}")
    return lambda: has_connected(supernode, folder, settings.server)


def copy_node_folder(federation: LocalFederation, like: int, name: str) -> NodeFolder:
    """A copy of a node's folder."""
    shutil.copytree(federation.folder.node_folder(like).root, federation.folder.root / "others" / name)
    return NodeFolder(federation.folder.root / "others" / name)


def stop_foreign_node(federation: LocalFederation, name: str) -> None:
    """Stops SuperNode and worker with SIGTERM, so that the SuperNode can leave the server."""
    for part in (f"supernode-{name}", f"worker-{name}"):
        process = federation.processes.running.pop(part)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(8)
        process.kill()


def kill(federation: LocalFederation, *names: str) -> None:
    """Ends processes without a warning, as a power failure would."""
    for name in names:
        federation.processes.running.pop(name).kill()


def prepare_federation(federation: LocalFederation) -> None:
    """Writes data, config, and which client misbehaves in which round."""
    rng = np.random.default_rng(0)
    for client in range(4):
        x, y = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 3, 30)
        np.savez(federation.folder.node_folder(client).root / "data.npz", x=x, y=np.r_[0, 1, 2, y[3:]])
    federation.folder.config_file.write_text(CONFIG)
    description = federation.folder.app / "pyproject.toml"
    client_app = tomllib.loads(description.read_text())["tool"]["flwr"]["app"]["components"]["clientapp"]
    description.write_text(description.read_text().replace(client_app, "misbehaving:app"))
    shutil.copy(Path(__file__).with_name("misbehaving.py"), federation.folder.app)
    for client in range(4):  # the operators of the nodes install the same app
        shutil.copytree(federation.folder.app, federation.folder.node_folder(client).app, dirs_exist_ok=True)
        memory_of(federation, client).mkdir()
    orders = {0: {1: "raise", 2: "claim", 3: "hang"}, 1: {1: "invalid", 2: "wait", 3: "late"}}
    for client, faults in orders.items():
        (memory_of(federation, client) / "faults.json").write_text(json.dumps(faults))


def memory_of(federation: LocalFederation, client: int) -> Path:
    """The only folder of a node in which its client code can write."""
    return federation.folder.node_folder(client).root / "memory"


def check_refused_nodes(federation: LocalFederation) -> float:
    """Nodes with an unknown key or another authority.

    Returns:
        Seconds for a phase: 10 where a node starts within three, up to 60 on a busy machine.
    """
    stranger = copy_node_folder(federation, 0, "stranger")
    for name in ("key", "key.pub"):
        (stranger.root / name).unlink()
    write_key_pair(stranger.root)
    lost = copy_node_folder(federation, 0, "lost")
    for name in ("ca.crt", "server.crt", "server.key"):
        (lost.root / name).unlink(missing_ok=True)
    write_certificates(lost.root)
    refused = start_foreign_node(federation, stranger, "stranger", worker=False)
    elsewhere = start_foreign_node(federation, lost, "lost", worker=False)
    with pytest.raises(
        KeyRefusedError, match=r"refused this node's key SHA256:\S+ it is not registered there"
    ):
        wait_until(refused, 120)
    with pytest.raises(InputError, match=r"is not the server of this node's ca\.crt"):
        wait_until(elsewhere, 120)
    for name in ("stranger", "lost"):
        del federation.processes.running[f"supernode-{name}"]  # it has ended
    # The stranger's key is registered with Flower, but has no account.
    with control_of(federation.folder) as control:
        control.register(stranger.public_key.read_bytes(), "stranger")
    begun = time.monotonic()
    stranger_connected = start_foreign_node(federation, stranger, "stranger")
    impostor = copy_node_folder(federation, 3, "impostor")
    impostor.settings_file.write_text(impostor.settings_file.read_text().replace("client = 3", "client = 0"))
    impostor_connected = start_foreign_node(federation, impostor, "impostor")
    wait_until(lambda: stranger_connected() and impostor_connected(), 120)
    return round(min(60.0, max(10.0, 3 * (time.monotonic() - begun))), 1)


def run_with_faults(federation: LocalFederation, out: Path, deadline: float) -> None:
    """Rounds 0 to 3; the server is killed in round 4."""
    (memory_of(federation, 1) / "late").write_text(str(deadline + 3))
    run = BackgroundRun(federation, out=str(out), nodes=3, deadline=deadline)
    run.wait_for(lambda: run.has_printed("1 of 5 rounds"))
    for name in ("impostor", "stranger"):
        stop_foreign_node(federation, name)
    run.wait_for(lambda: run.has_printed("2 of 5 rounds"))
    federation.start_nodes((3,))
    (memory_of(federation, 1) / "go on").touch()  # client 1 holds the third round open until now
    run.wait_for((memory_of(federation, 0) / "hanging").exists)
    kill(federation, "supernode-0", "worker-0")
    run.wait_for(lambda: run.has_printed("4 of 5 rounds"))
    kill(federation, "superexec", "front", "superlink")
    run.join()
    assert "the server does not answer any more" in str(run.error)
    assert not run.has_printed("5 of 5 rounds")


def resume_after_restart(federation: LocalFederation, out: Path, deadline: float) -> None:
    federation.start_server()
    run = BackgroundRun(federation, out=str(out), nodes=3, resume=True, deadline=deadline)
    run.join()
    assert run.error is None
    assert next(line for line in run.lines if " rounds: " in line and " of " in line).startswith(
        "5 of 5 rounds: 3 clients"
    )


def check_statements(federation: LocalFederation, out: Path) -> None:
    """Each node keeps what it is told of its account, and the ledger says the same."""
    run = str(json.loads((out / "flower.json").read_text())["run"])
    for client in (1, 2, 3):
        kept = memory_of(federation, client) / run / str(client) / "account.jsonl"
        checked = CliRunner().invoke(app, ["ledger", "check", str(kept), "--against", str(out)])
        assert (checked.exit_code, f"client {client} has" in checked.output) == (0, True), checked.output


def check_rounds(lines: list[dict[str, Any]]) -> None:
    """Events and trained clients of each round."""

    def events(round: int) -> set[tuple[str, int | None]]:
        rows: tuple[Event, ...] = lines[round]["events"]
        return {(row.kind, row.client) for row in rows}

    def trained(round: int) -> set[int]:
        rows: tuple[Seat, ...] = lines[round]["seats"]
        return {row.client for row in rows if row.delivered}

    refused = [event.text for event in lines[0]["events"] if event.kind == "node_refused"]
    assert len(refused) == 2
    for why in ("claims client 0, but its key belongs to client 3", "has a key that is not registered"):
        assert any(why in text for text in refused)
    assert trained(0) == {0, 1, 2}
    assert {("client_failed", 0), ("malformed_reply", 1)} <= events(1)
    assert trained(1) == {2}
    assert ("malformed_reply", 0) in events(2)
    assert trained(2) == {1, 2}
    # Its node was killed while it trained: the deadline, or Flower's heartbeats, whichever is first.
    assert {("overdue", 0), ("client_failed", 0)} & events(3)
    assert ("overdue", 1) in events(3)
    assert trained(3) == {2, 3}  # client 3 joined late
    assert trained(4) == {1, 2, 3}


def test_a_run_goes_on_through_faults_and_attacks(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with local_federation(tmp_path / "federation", 4) as federation:
        prepare_federation(federation)
        federation.start_server()
        attack_memory(federation, honest=3)
        attack_as_stranger(federation)
        attack_as_node(federation, attacker=3, victim=0)
        federation.start_nodes((0, 1, 2))
        attack_as_server(federation, (0, 1, 2))
        deadline = check_refused_nodes(federation)
        run_with_faults(federation, out, deadline)
        resume_after_restart(federation, out, deadline)
        check_statements(federation, out)
        everything = [process.popen for process in federation.processes.running.values()]
    assert all(process.poll() is not None for process in everything)
    lines = [check_line(0, json.loads(line)) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    check_rounds(lines)
    verified = CliRunner().invoke(app, ["ledger", "verify", str(out)])
    assert (verified.exit_code, "5 of 5 rounds verified" in verified.output) == (0, True)
    store = RunStore.open(out)
    with store.snapshot() as reader:
        opened = [row.transfer.client for row in reader.transfers() if row.transfer.kind == "open"]
    assert opened == [0, 1, 2, 3]  # one opening balance each, also for the client that joined late
