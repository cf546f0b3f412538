"""A node's machine: starts a SuperNode with the node's key, and the worker that runs its client code."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ipfl.deploy.credentials import fingerprint, read_node_public_key, write_random_secret
from ipfl.deploy.federation_folder import NodeFolder
from ipfl.deploy.operator import PrintLine
from ipfl.deploy.processes import Processes, RunningProcess, find_free_port, flower_environment
from ipfl.deploy.settings_files import NodeSettings
from ipfl.engines.flower.flwr_internals import (
    BAD_CERTIFICATE_TEXT,
    CONNECTED_TEXT,
    KEY_REFUSED_TEXT,
    NO_ANSWER_TEXT,
)
from ipfl.errors import InputError

RECONNECT_SECONDS = 10.0
"""How long a node waits after the server has refused its key, before it connects again."""
MAX_RETRY_SECONDS = 75.0
"""How long it goes on trying. The server refuses a node whose connection was lost for up to a minute."""


SILENT_SECONDS = 60.0
"""How long a node may neither ask for messages, which it does every 3 s at least, nor work on one."""


class KeyRefusedError(InputError):
    """The server did not accept this node's key; it may do so later."""


def prepare_node(folder: NodeFolder) -> NodeSettings:
    """Checks that the folder has all that a node needs; returns its settings with absolute paths."""
    settings = NodeSettings.load(folder.settings_file)
    for path in (folder.private_key, folder.ca_certificate):
        if not path.exists():
            raise InputError(f"{folder.root} has no {path.name}: copy the whole folder of the node")
    if folder.private_key.stat().st_mode & 0o077:
        raise InputError(f"{folder.private_key} can be read by others: chmod 600 {folder.private_key}")
    data = (folder.root / settings.data).resolve()
    if not data.exists():
        raise InputError(
            f"there is no {data}: put the node's data there, or change `data` in {folder.settings_file}"
        )
    memory = (folder.root / settings.memory).resolve()
    memory.mkdir(parents=True, exist_ok=True)
    app = (folder.root / settings.app).resolve()
    readable = tuple((folder.root / path).resolve() for path in settings.readable)
    return settings.model_copy(update={"data": data, "memory": memory, "app": app, "readable": readable})


def start_supernode(
    processes: Processes, folder: NodeFolder, settings: NodeSettings, port: int, suffix: str = ""
) -> RunningProcess:
    """Starts the SuperNode alone; `has_connected` tells when the server has accepted it.

    Args:
        processes: Starts and stops it.
        folder: The node's folder.
        settings: What `prepare_node` returned.
        port: Port of this machine on which the SuperNode gives tasks to the worker.
        suffix: For the names of process and log file, where several nodes share a machine.
    """
    home = folder.flower_home
    home.mkdir(exist_ok=True)
    write_random_secret(folder.secret)
    folder.heartbeat.touch()
    command = [
        *(sys.executable, "-m", "ipfl.deploy.node.supernode_process", str(folder.heartbeat)),
        *("--root-certificates", str(folder.ca_certificate.resolve())),
        *("--superlink", settings.server),
        *("--auth-supernode-private-key", str(folder.private_key.resolve())),
        *("--node-config", _node_config(settings)),
        *("--isolation", "process", "--port", str(port)),
        *("--superexec-auth-secret-file", str(folder.secret)),
    ]
    # `has_connected` reads the log, which must not contain an earlier connection.
    (processes.logs / f"supernode{suffix}.log").unlink(missing_ok=True)
    return processes.start(f"supernode{suffix}", command, flower_environment(home), home)


def start_node(
    processes: Processes, folder: NodeFolder, settings: NodeSettings, suffix: str = ""
) -> RunningProcess:
    """Starts SuperNode and worker; returns the SuperNode."""
    port = find_free_port()
    supernode = start_supernode(processes, folder, settings, port, suffix)
    worker = [sys.executable, "-m", "ipfl.deploy.node.node_worker", f"127.0.0.1:{port}", str(folder.root)]
    processes.start(f"worker{suffix}", worker, flower_environment(folder.flower_home), folder.flower_home)
    return supernode


def _node_config(settings: NodeSettings) -> str:
    """The settings in the form in which Flower passes them to client code."""
    values = {"client": settings.client, "data": str(settings.data), "memory": str(settings.memory)}
    return " ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
        for name, value in (values | settings.limits()).items()
    )


def has_connected(supernode: RunningProcess, folder: NodeFolder, server: str) -> bool:
    """Whether the server has accepted the node.

    Raises:
        KeyRefusedError: The SuperNode has ended because the server refused its key.
        InputError: It has ended for another reason.
    """
    if CONNECTED_TEXT in supernode.last_lines(1000):
        return True
    if supernode.is_alive():
        return False
    key = fingerprint(read_node_public_key(folder.public_key))
    raise connection_error(supernode.last_lines(40), key, server)


def wait_for_connection(
    supernode: RunningProcess, folder: NodeFolder, settings: NodeSettings, print_line: PrintLine
) -> None:
    """Waits, without limit, until the server has accepted the node: the server may be started later."""
    is_user_told = False
    while not has_connected(supernode, folder, settings.server):
        if not is_user_told and NO_ANSWER_TEXT in supernode.last_lines():
            print_line(f"client {settings.client}: {settings.server} does not answer; trying until it does")
            is_user_told = True
        time.sleep(0.2)


def connection_error(output: str, key: str, server: str) -> InputError:
    """The error for a SuperNode that has ended.

    Args:
        output: The last lines that it printed.
        key: Fingerprint of its key.
        server: Address of the server.
    """
    if KEY_REFUSED_TEXT in output:
        return KeyRefusedError(
            f"{server} refused this node's key {key}: it is not registered there (ipfl deploy register), "
            "or the node's last connection was lost less than a minute ago and still counts"
        )
    if BAD_CERTIFICATE_TEXT in output:
        return InputError(
            f"{server} is not the server of this node's ca.crt: another authority signed its "
            "certificate, or it does not cover that name"
        )
    return InputError(f"the node could not connect to {server}: {' '.join(output.split())[-300:]}")


def wait_until_silent(processes: Processes, heartbeat: Path, seconds: float = SILENT_SECONDS) -> bool:
    """Waits while a node is at work.

    Args:
        processes: SuperNode and worker.
        heartbeat: The file that they touch.
        seconds: How long none of them may touch it.

    Returns:
        Whether the node fell silent, though its processes run; otherwise one of them has ended.
    """
    seen, since = -1.0, time.monotonic()
    while all(process.is_alive() for process in processes.running.values()):
        touched = heartbeat.stat().st_mtime if heartbeat.exists() else 0.0
        if touched != seen:
            seen, since = touched, time.monotonic()
        elif time.monotonic() > since + seconds:
            return True
        time.sleep(0.2)
    return False


def run_node(folder: NodeFolder, print_line: PrintLine) -> None:
    """Starts a node and keeps it running until an exception (Ctrl-C, SIGTERM) stops it.

    A node that stops answering, though it is connected, is started again.

    Args:
        folder: The node's folder.
        print_line: Called with each line about the progress.

    Raises:
        InputError: The server does not accept it, or something in its folder is wrong.
        ProcessDiedError: SuperNode or worker ended.
    """
    settings = prepare_node(folder)
    deadline = time.monotonic() + MAX_RETRY_SECONDS
    while True:
        with Processes(folder.logs) as processes:
            supernode = start_node(processes, folder, settings)
            print_line(f"client {settings.client}: connecting to {settings.server}")
            try:
                wait_for_connection(supernode, folder, settings, print_line)
                print_line(f"client {settings.client}: connected")
                if wait_until_silent(processes, folder.heartbeat, SILENT_SECONDS):
                    print_line(
                        f"client {settings.client}: connected, but it has not asked for messages for "
                        f"{SILENT_SECONDS:.0f} s; starting it again"
                    )
                    deadline = time.monotonic() + MAX_RETRY_SECONDS
                    continue
                # A connected SuperNode ends with code 0 only if the server has unregistered its key.
                if supernode.popen.poll() == 0:
                    raise InputError(
                        f"{settings.server} disconnected this node: its key is no longer registered"
                    )
                processes.raise_if_one_ended()
            except KeyRefusedError as error:
                if time.monotonic() > deadline:
                    raise
                print_line(f"{error}; trying again in {RECONNECT_SECONDS:.0f} s")
        time.sleep(RECONNECT_SECONDS)
