"""The commands as a user calls them, each a process of its own; no process is left at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ipfl.deploy.credentials import write_key_pair
from ipfl.deploy.processes import find_free_ports

pytestmark = [pytest.mark.slow, pytest.mark.waits]

CONFIG = """\
rounds = 400
[method]
name = "ipfl-plus"
clusters = 1
[task]
model = "softmax"
[aggregate]
min_providers = 1
"""
ONE_CLIENT = ("--set", "method.clusters=1", "--set", "aggregate.min_providers=1")
"""What a federation of one client needs."""


def ipfl(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Starts a command; what it prints goes to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "ipfl"), *arguments], stdout=output, stderr=subprocess.STDOUT
        )


def wait_for(text: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def leftover_processes(folder: Path) -> list[str]:
    """Commands of processes whose FLWR_HOME is in a folder: those of Flower and of nodes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"FLWR_HOME={folder}".encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def test_a_trial_from_start_to_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    one_node = ("--nodes", "1", *ONE_CLIENT)  # each more takes six seconds of processor time
    trial = ipfl("deploy", "try", *one_node, "--rounds", "1", "--out", str(tmp_path / "out"), log=log)
    assert trial.wait(400) == 0, log.read_text()
    lines = log.read_text().splitlines()
    assert "server: running, with TLS and node keys" in lines
    assert "nodes: 1 of 1 connected, each with its own data" in lines
    assert any(line.startswith("1 of 1 rounds: 1 clients") for line in lines)
    assert lines[-2:] == ["everything stopped", f"Results in {tmp_path / 'out' / 'run'}"]
    assert (tmp_path / "out" / "run" / "summary.json").exists()
    assert not leftover_processes(tmp_path)


def replace_key(site: Path, node: subprocess.Popen[bytes], logs: Path) -> subprocess.Popen[bytes]:
    """Gives the client another key: its node is disconnected, and connects again with that key."""
    (logs / "new").mkdir()
    name, log = write_key_pair(logs / "new"), logs / "register"
    public = str(logs / "new" / "key.pub")
    register = ipfl("deploy", "register", str(site), public, "--client", "0", "--replace", log=log)
    assert register.wait(120) == 0
    assert log.read_text() == f"client 0: key {name}; registered with the server\n"
    assert node.wait(120) == 2
    assert "disconnected this node: its key is no longer registered" in (logs / "node").read_text()
    for file in ("key", "key.pub"):
        (logs / "new" / file).replace(site / "nodes" / "0" / file)
    node = ipfl("deploy", "node", str(site / "nodes/0"), log=logs / "node")
    wait_for("client 0: connected", logs / "node", node)
    return node


def test_init_server_node_run_and_register(tmp_path: Path) -> None:
    """Init, server, node, a run stopped by Ctrl-C, a new key, and SIGTERM for the rest, as from systemd."""
    site = tmp_path / "site"
    assert ipfl("deploy", "init", str(site), "--nodes", "1", log=tmp_path / "init").wait(60) == 0
    port, run_port = find_free_ports(2)
    for settings in (site / "server.toml", site / "nodes/0/node.toml"):
        text = settings.read_text().replace("9092", str(port)).replace("9093", str(run_port))
        settings.write_text(text)
    (site / "run.toml").write_text(CONFIG)
    np.savez(site / "nodes/0/data.npz", x=np.eye(6, dtype=np.float32), y=np.arange(6) % 2)
    server = ipfl("deploy", "server", str(site), log=tmp_path / "server")
    node = run = None
    try:
        wait_for("server: running", tmp_path / "server", server)
        node = ipfl("deploy", "node", str(site / "nodes/0"), log=tmp_path / "node")
        run = ipfl("deploy", "run", str(site), log=tmp_path / "run")
        wait_for("client 0: connected", tmp_path / "node", node)
        wait_for("1 of 400 rounds: 1 clients", tmp_path / "run", run)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
        last = (tmp_path / "run").read_text().splitlines()[-1]
        assert last == f"error: interrupted; to go on: ipfl deploy run {site} --resume {site / 'runs/run-1'}"
        elsewhere = ipfl("run", "--resume", str(site / "runs/run-1"), log=tmp_path / "elsewhere")
        assert elsewhere.wait(120) == 2
        assert "runs on deployed nodes: ipfl deploy run DIR --resume" in (tmp_path / "elsewhere").read_text()
        node = replace_key(site, node, tmp_path)
        second = ipfl("deploy", "server", str(site), log=tmp_path / "second")
        assert second.wait(60) == 2
        assert "is in use" in (tmp_path / "second").read_text()
    finally:
        for process in (run, node, server):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
    assert node.wait(60) == 143
    assert server.wait(60) == 143
    assert not leftover_processes(tmp_path)
