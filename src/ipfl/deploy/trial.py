"""A whole federation on this machine, for a look or a test: real processes, TLS, keys, separate data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.client.task import Task
from ipfl.core import ClientId
from ipfl.data.federated import Parts
from ipfl.deploy import texts
from ipfl.deploy.folder import LOOPBACK, NodeFolder, NodeSettings, ServerFolder, init
from ipfl.deploy.node import arrived, free_port, prepare, start_node
from ipfl.deploy.processes import Processes, Running
from ipfl.deploy.runs import RunValue, run
from ipfl.deploy.server import Say, start_server
from ipfl.errors import InputError
from ipfl.methods import check_clusters
from ipfl.report.settings import show_config
from ipfl.runs.config import Config

ARRIVAL = 120.0
"""Seconds that a node has to connect on loopback."""


class Federation:
    """SuperLink and SuperNodes on loopback, from a folder that `init` wrote."""

    def __init__(self, folder: ServerFolder, processes: Processes):
        self.folder = folder
        self.processes = processes

    def start_server(self) -> None:
        """Starts the SuperLink and registers the accounts."""
        start_server(self.processes, self.folder)

    def kill_server(self) -> None:
        """Ends it as a power cut would."""
        for part in ("superlink", "superexec"):
            self.processes.running.pop(part).kill()

    def start_node(self, client: ClientId) -> tuple[Running, NodeFolder, NodeSettings]:
        """Starts a node; it connects in the background."""
        node = self.folder.node(client)
        settings = prepare(node)
        return start_node(self.processes, node, settings, f"-{client}"), node, settings

    def start_nodes(self, clients: tuple[ClientId, ...]) -> None:
        """Starts nodes and waits until the server has let all of them in."""
        started = [self.start_node(client) for client in clients]
        deadline = time.monotonic() + ARRIVAL
        for running, node, settings in started:
            while not arrived(running, node, settings.server):
                self.processes.check()
                if time.monotonic() > deadline:
                    raise InputError(f"a node did not connect within {ARRIVAL:.0f} s; see {running.log}")
                time.sleep(0.2)

    def kill_node(self, client: ClientId) -> None:
        """Ends a node as a power cut would."""
        for part in (f"supernode-{client}", f"worker-{client}"):
            self.processes.running.pop(part).kill()

    def run(self, settings: Mapping[str, RunValue], say: Say) -> None:
        """Runs a method over the nodes."""
        given = {"config": str(self.folder.config), "registry": str(self.folder.accounts)}
        run(self.folder, given | dict(settings), say)


@contextmanager
def federation(root: Path, nodes: int) -> Iterator[Federation]:
    """A new federation in `root`, on loopback and a free port; nothing of it runs yet, and nothing after."""
    folder = init(root, nodes=nodes, port=free_port(), bind=LOOPBACK)
    with Processes(folder.logs) as processes:
        yield Federation(folder, processes)


def write_data(folder: ServerFolder, task: Task) -> None:
    """Gives each node a client's data, as its owner would."""
    for client in task.data.clients:
        parts = task.data.parts(client, 0)
        np.savez(folder.node(client).root / "data.npz", allow_pickle=False, **_arrays(parts))


def _arrays(parts: Parts) -> dict[str, NDArray[Any]]:
    """A node holds back its probe part from x and y by itself."""
    return {
        "x": np.concatenate([parts.train.x, parts.probe.x]),
        "y": np.concatenate([parts.train.y, parts.probe.y]),
        "x_test": parts.test.x,
        "y_test": parts.test.y,
    }


def settings(file: Path | None, sets: Sequence[str], nodes: int, rounds: int | None) -> Config:
    """What a trial runs: a config of the user's, or a small example, for as many clients."""
    given = {"task.clients": nodes, "task.unseen": 0} | ({} if rounds is None else {"rounds": rounds})
    if file is not None:
        return Config.load(file, sets, given)
    return Config.load(None, [*texts.EXAMPLE, *sets], given)


def attempt(config: Config, nodes: int, out: Path, say: Say) -> Path:
    """A federation of `nodes` on loopback runs the config from start to end.

    Args:
        config: What is run; the data of its `[task]` is split among the nodes.
        nodes: Number of nodes.
        out: Folder for all of it; it must not be there yet.
        say: Told what happens.

    Returns:
        The folder with the results.
    """
    method = config.build_method()
    check_clusters(method, nodes)
    task = Task.build(config.task, config.seed)
    with federation(out / "federation", nodes) as trial:
        write_data(trial.folder, task)
        trial.folder.config.write_text(show_config(config, [method]), encoding="utf-8")
        say(f"certificates, {nodes} keys and {nodes} accounts in {trial.folder.root}")
        trial.start_server()
        say("server: up, with TLS and node authentication")
        trial.start_nodes(tuple(range(nodes)))
        say(f"nodes: {nodes} of {nodes} connected, each with its own data")
        trial.run({"out": str(out / "run"), "nodes": nodes}, say)
    say("everything stopped")
    return out / "run"
