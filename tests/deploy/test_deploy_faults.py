"""Faults for real, on loopback: one federation lives through all of them, in a run of five rounds.

Four clients, one cluster, and a seat for everybody, so that each client trains in every round it is there.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.deploy.certificates import write_certificates
from ipfl.deploy.folder import PROFILE, NodeFolder
from ipfl.deploy.keys import write_key_pair
from ipfl.deploy.node import RefusedError, arrived, free_port, prepare, start_node, start_supernode
from ipfl.deploy.runs import RunValue
from ipfl.deploy.server import flwr
from ipfl.deploy.trial import Federation, federation
from ipfl.errors import InputError
from ipfl.store import RunStore

pytestmark = pytest.mark.slow

CONFIG = """\
rounds = 5
[method]
name = "ipfl"
clusters = 1
[task]
model = "softmax"
[train]
per_round = 4
epochs = 1
"""


class Background:
    """A run in a thread, with the lines that it printed."""

    def __init__(self, trial: Federation, **settings: RunValue):
        self.lines: list[str] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._go, args=(trial, settings))
        self._thread.start()

    def _go(self, trial: Federation, settings: dict[str, RunValue]) -> None:
        try:
            trial.run(settings, self.lines.append)
        except Exception as error:
            self.error = error

    def wait_for(self, what: Callable[[], bool], seconds: float = 300) -> None:
        until(lambda: what() or not self._thread.is_alive(), seconds)
        assert what(), (self.lines, self.error)

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def end(self, seconds: float = 300) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), self.lines


def until(what: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.1)


def start_other(trial: Federation, folder: NodeFolder, name: str) -> Callable[[], bool]:
    """Starts a node that is not one of the federation's own; returns whether it arrived."""
    settings = prepare(folder)
    running = start_node(trial.processes, folder, settings, f"-{name}")
    return lambda: arrived(running, folder, settings.server)


def refused_node(trial: Federation, folder: NodeFolder, name: str) -> Callable[[], bool]:
    """The same without a worker, for a node that will not get that far."""
    settings = prepare(folder)
    running = start_supernode(trial.processes, folder, settings, free_port(), f"-{name}")
    return lambda: arrived(running, folder, settings.server)


def patience(trial: Federation) -> float:
    """Seconds for a phase: 15 where one of Flower's commands takes a second, up to 60 on a busy machine."""
    start = time.monotonic()
    flwr(trial.folder, "supernode", "list", PROFILE)
    return round(min(60.0, max(15.0, 15 * (time.monotonic() - start))), 1)


def other_node(trial: Federation, like: int, name: str) -> NodeFolder:
    """A copy of a node's folder."""
    shutil.copytree(trial.folder.node(like).root, trial.folder.root / "others" / name)
    return NodeFolder(trial.folder.root / "others" / name)


def stop_other(trial: Federation, name: str) -> None:
    trial.processes.stop(f"supernode-{name}")
    trial.processes.stop(f"worker-{name}")


def prepare_federation(trial: Federation) -> None:
    """Data, config, and who misbehaves when."""
    rng = np.random.default_rng(0)
    for client in range(4):
        x, y = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 3, 30)
        np.savez(trial.folder.node(client).root / "data.npz", x=x, y=np.r_[0, 1, 2, y[3:]])
    trial.folder.config.write_text(CONFIG)
    described = (trial.folder.app / "pyproject.toml").read_text()
    client_app = "ipfl.engines.flower.client:app"
    assert client_app in described
    (trial.folder.app / "pyproject.toml").write_text(described.replace(client_app, "misbehaving:app"))
    shutil.copy(Path(__file__).with_name("misbehaving.py"), trial.folder.app)
    orders = {0: {1: "raise", 2: "claim", 3: "hang"}, 1: {1: "nonsense", 2: "late"}}
    for client, faults in orders.items():
        (trial.folder.node(client).root / "faults.json").write_text(json.dumps(faults))


def refusals(trial: Federation) -> None:
    """Keys and authorities that do not belong here."""
    stranger = other_node(trial, 0, "stranger")
    for name in ("key", "key.pub"):
        (stranger.root / name).unlink()
    write_key_pair(stranger.root)
    lost = other_node(trial, 0, "lost")
    for name in ("ca.crt", "server.crt", "server.key"):
        (lost.root / name).unlink(missing_ok=True)
    write_certificates(lost.root)
    refused = refused_node(trial, stranger, "stranger")
    elsewhere = refused_node(trial, lost, "lost")
    with pytest.raises(RefusedError, match=r"refused this node's key SHA256:\S+ it is not registered there"):
        until(refused, 120)
    with pytest.raises(InputError, match=r"is not the server of this node's ca\.crt"):
        until(elsewhere, 120)
    for name in ("stranger", "lost"):
        trial.processes.stop(f"supernode-{name}")
    # Somebody registers the stranger with Flower, but opens no account for it.
    assert flwr(trial.folder, "supernode", "register", str(stranger.root / "key.pub"), PROFILE)["success"]
    stranger_came = start_other(trial, stranger, "stranger")
    impostor = other_node(trial, 3, "impostor")
    impostor.settings.write_text(impostor.settings.read_text().replace("client = 3", "client = 0"))
    impostor_came = start_other(trial, impostor, "impostor")
    until(lambda: stranger_came() and impostor_came(), 120)


def too_few(trial: Federation, out: Path, deadline: float) -> None:
    """Three honest nodes are here, and two that count for nothing."""
    run = Background(trial, out=str(out), nodes=4, wait=deadline / 2, deadline=deadline)
    run.end()
    assert run.said("waiting for nodes: 3 of 4 clients are here, ")
    assert isinstance(run.error, InputError)
    assert f"3 of 4 clients came within {deadline / 2:g} s" in str(run.error)
    assert "claims client 0, but its key belongs to client 3; refused" in str(run.error)
    assert "has a key that is not registered" in str(run.error)


def through_the_faults(trial: Federation, out: Path, deadline: float) -> None:
    """Rounds 0 to 3; the server dies in round 4."""
    (trial.folder.node(1).root / "late").write_text(str(deadline + 3))
    run = Background(trial, out=str(out), nodes=3, deadline=deadline)
    run.wait_for(lambda: run.said("round 1/5"))
    for name in ("impostor", "stranger"):
        stop_other(trial, name)
    run.wait_for(lambda: run.said("round 2/5"))
    trial.start_nodes((3,))
    hanging = trial.folder.node(0).root / "hanging"
    run.wait_for(hanging.exists)
    trial.kill_node(0)
    run.wait_for(lambda: run.said("round 4/5"))
    trial.kill_server()
    run.end()
    assert "the server does not answer any more" in str(run.error)
    assert not run.said("round 5/5")


def after_the_restart(trial: Federation, out: Path, deadline: float) -> None:
    trial.start_server()
    run = Background(trial, out=str(out), nodes=3, resume=True, deadline=deadline)
    run.end()
    assert run.error is None
    assert next(line for line in run.lines if line.startswith("round")).startswith("round 5/5: 3 clients")


def check_rounds(lines: list[dict[str, object]]) -> None:
    """What each round says of each fault."""

    def events(round: int) -> str:
        return "\n".join(lines[round]["events"])  # type: ignore[arg-type]

    def refunded(round: int) -> set[int]:
        return {row[5] for row in lines[round]["transfers"] if row[0] == "refund"}  # type: ignore[attr-defined]

    def trained(round: int) -> set[int]:
        return {row[0] for row in lines[round]["seats"] if row[3]}  # type: ignore[attr-defined]

    assert "claims client 0, but its key belongs to client 3; refused" in events(0)
    assert "has a key that is not registered" in events(0)
    assert trained(0) == {0, 1, 2}
    assert "client 0 did not answer 'train': ZeroDivisionError: a bug in the client's code" in events(1)
    assert "client 1 did not answer 'train': its reply is malformed" in events(1)
    assert (trained(1), refunded(1)) == ({2}, {0, 1})
    assert "client 0 did not answer 'train': its reply is malformed: it is a reply of client 1" in events(2)
    assert "client 1 did not answer 'train'" in events(2)  # too late
    assert {0, 1} <= refunded(2)
    assert "client 0 did not answer 'train'" in events(3)
    assert trained(3) == {1, 2, 3}  # client 3 joined late
    assert refunded(3) == {0}
    assert trained(4) == {1, 2, 3}


def test_a_federation_lives_through_faults(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with federation(tmp_path / "federation", 4) as trial:
        prepare_federation(trial)
        trial.start_server()
        trial.start_nodes((0, 1, 2))
        refusals(trial)
        deadline = patience(trial)
        too_few(trial, tmp_path / "few", deadline)
        through_the_faults(trial, out, deadline)
        after_the_restart(trial, out, deadline)
        everything = [one.process for one in trial.processes.running.values()]
    assert all(process.poll() is not None for process in everything)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    check_rounds(lines)
    verified = CliRunner().invoke(app, ["ledger", "verify", str(out)])
    assert (verified.exit_code, "5 rounds verified" in verified.output) == (0, True)
    with RunStore.open(str(out), None) as store, store.snapshot() as reader:
        opened = [entry.client for entry in reader.transfers() if entry.kind == "open"]
    assert opened == [0, 1, 2, 3]  # one opening balance each, also for who came late
