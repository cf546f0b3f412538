"""A federation on this machine, for `ipfl deploy try` and tests: real processes, TLS, keys, separate data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl import methods
from ipfl.config.whole_config import Config
from ipfl.core import ClientId
from ipfl.data.federated import Parts
from ipfl.deploy.federation_folder import ServerFolder, create_folder
from ipfl.deploy.node.supernode import has_connected, prepare_node, start_node
from ipfl.deploy.operator import PrintLine, RunValue, run_and_follow
from ipfl.deploy.processes import Processes, find_free_ports
from ipfl.deploy.server.superlink import start_superlink
from ipfl.deploy.settings_files import load_run_config
from ipfl.errors import InputError
from ipfl.methods import check_clusters
from ipfl.play.setup import trainings_per_round
from ipfl.report.config_text import commented_toml
from ipfl.training.task import Task

CONNECT_SECONDS = 120.0
"""How long a node on this machine may take to connect."""
DEFAULT_SETTINGS = ("rounds=2", f"method.name={methods.DEFAULT}", "method.clusters=2", "task.model=softmax")
"""Settings of a trial without a config file, in the form of `--set`."""


class LocalFederation:
    """Server and nodes on the loopback interface.

    Args:
        folder: The federation's folder.
        processes: Starts and stops them.
    """

    def __init__(self, folder: ServerFolder, processes: Processes):
        self.folder = folder
        self.processes = processes

    def write_inputs(self, config: Config, task: Task) -> None:
        """Writes the config of the run, and each client's data into the folder of its node."""
        text = commented_toml(config)
        self.folder.config_file.write_text(text, encoding="utf-8")
        for client in task.data.clients:
            arrays = _node_arrays(task.data.parts(client, 0))
            np.savez(self.folder.node_folder(client).root / "data.npz", allow_pickle=False, **arrays)

    def start_server(self) -> None:
        """Starts the server's processes and registers the accounts."""
        start_superlink(self.processes, self.folder)

    def start_nodes(self, clients: Sequence[ClientId]) -> None:
        """Starts nodes and waits until the server has accepted all of them."""
        started = []
        for client in clients:
            node = self.folder.node_folder(client)
            settings = prepare_node(node)
            started.append((start_node(self.processes, node, settings, f"-{client}"), node, settings))
        deadline = time.monotonic() + CONNECT_SECONDS
        for supernode, node, settings in started:
            while not has_connected(supernode, node, settings.server):
                self.processes.raise_if_one_ended()
                if time.monotonic() > deadline:
                    raise InputError(
                        f"a node did not connect within {CONNECT_SECONDS:.0f} s; see {supernode.log}"
                    )
                time.sleep(0.2)

    def run(self, settings: Mapping[str, RunValue], print_line: PrintLine) -> None:
        """Runs the folder's config on the nodes, with these settings of the app."""
        files = {"config": str(self.folder.config_file), "registry": str(self.folder.accounts_file)}
        run_and_follow(self.folder, files | dict(settings), print_line)


@contextmanager
def local_federation(root: Path, nodes: int) -> Iterator[LocalFederation]:
    """Creates a federation in the folder `root`, not started yet; at the end its processes are stopped."""
    port, run_port = find_free_ports(2)
    folder = create_folder(root, nodes=nodes, ports=(port, run_port))
    with Processes(folder.logs) as processes:
        yield LocalFederation(folder, processes)


def trial_config(file: Path | None, sets: Sequence[str], nodes: int, rounds: int | None) -> Config:
    """Config of a trial, from a file or the default settings, with one client for each node."""
    overrides = {"task.clients": nodes, "task.unseen": 0} | ({} if rounds is None else {"rounds": rounds})
    return load_run_config(file, [*(() if file else DEFAULT_SETTINGS), *sets], overrides)


def run_trial(config: Config, nodes: int, out: Path, print_line: PrintLine) -> Path:
    """Creates a federation on this machine, runs the config on it, and stops everything.

    Args:
        config: What is run; the data of its `[task]` is divided among the nodes.
        nodes: Number of nodes.
        out: Folder for federation and results; it must not exist yet.
        print_line: Called with each line about the progress.

    Returns:
        The folder with the results.
    """
    method = config.build_method()
    check_clusters(method, nodes)
    config.train.check_quorum(nodes)
    trainings_per_round(method, config, nodes)
    task = Task.build(config.task, config.seed)
    with local_federation(out / "federation", nodes) as federation:
        federation.write_inputs(config, task)
        print_line(f"certificates, {nodes} keys and {nodes} accounts in {federation.folder.root}")
        federation.start_server()
        print_line("server: running, with TLS and node keys")
        federation.start_nodes(range(nodes))
        print_line(f"nodes: {nodes} of {nodes} connected, each with its own data")
        settings: dict[str, RunValue] = {"nodes": nodes, "classes": task.data.classes}
        federation.run({"out": str(out / "run"), **settings}, print_line)
    print_line("everything stopped")
    return out / "run"


def _node_arrays(parts: Parts) -> dict[str, NDArray[Any]]:
    """Content of `data.npz`; the node itself divides `x` and `y` into training and probe part again."""
    return {
        "x": np.concatenate([parts.train.x, parts.probe.x]),
        "y": np.concatenate([parts.train.y, parts.probe.y]),
        "x_test": parts.test.x,
        "y_test": parts.test.y,
    }
