"""A node's machine: a SuperNode with its own key, and the worker that runs its client code."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from ipfl.deploy.folder import NodeFolder, NodeSettings
from ipfl.deploy.keys import fingerprint, read_public_key
from ipfl.deploy.processes import Processes, Running, environment
from ipfl.deploy.secrets import fresh_secret
from ipfl.deploy.server import Say, installed
from ipfl.errors import InputError

ONLINE = "SuperNode ID:"
"""What a SuperNode prints once the server has let it in."""
UNREACHED = "Connection attempt failed"
"""What it prints while nobody answers."""
AGAIN = 10.0
"""Seconds between tries of a node that was refused."""
CUT_OFF = 75.0
"""Seconds after which a node that was cut off no longer counts as present, with some to spare."""


class RefusedError(InputError):
    """The server did not let this node in; says why, as far as a node can know."""


def prepare(folder: NodeFolder) -> NodeSettings:
    """Checks that the folder has all that a node needs, and returns its settings with absolute paths."""
    settings = NodeSettings.load(folder.settings)
    for path in (folder.key, folder.authority):
        if not path.exists():
            raise InputError(f"{folder.root} has no {path.name}: copy the whole folder of the node")
    if folder.key.stat().st_mode & 0o077:
        raise InputError(f"{folder.key} can be read by others: chmod 600 {folder.key}")
    data = (folder.root / settings.data).resolve()
    if not data.exists():
        raise InputError(
            f"there is no {data}: put the node's data there, or change `data` in {folder.settings}"
        )
    memory = (folder.root / settings.memory).resolve()
    memory.mkdir(parents=True, exist_ok=True)
    return settings.model_copy(update={"data": data, "memory": memory})


def start_supernode(
    processes: Processes, folder: NodeFolder, settings: NodeSettings, port: int, suffix: str = ""
) -> Running:
    """Starts the SuperNode; `arrived` says when the server has let it in."""
    folder.home.mkdir(exist_ok=True)
    command = [
        *installed("flower-supernode"),
        *("--root-certificates", str(folder.authority.resolve())),
        *("--superlink", settings.server),
        *("--auth-supernode-private-key", str(folder.key.resolve())),
        *("--node-config", node_config(settings)),
        *("--isolation", "process", "--port", str(port)),
        *("--superexec-auth-secret-file", str(fresh_secret(_secret(folder)))),
    ]
    (processes.logs / f"supernode{suffix}.log").unlink(missing_ok=True)  # `arrived` reads it
    return processes.start(f"supernode{suffix}", command, environment(folder.home), folder.home)


def start_node(processes: Processes, folder: NodeFolder, settings: NodeSettings, suffix: str = "") -> Running:
    """Starts SuperNode and worker; returns the SuperNode."""
    port = free_port()
    running = start_supernode(processes, folder, settings, port, suffix)
    worker = [sys.executable, "-m", "ipfl.deploy.worker", f"127.0.0.1:{port}", str(_secret(folder))]
    processes.start(f"worker{suffix}", worker, environment(folder.home), folder.home)
    return running


def _secret(folder: NodeFolder) -> Path:
    """What the worker shows the SuperNode, so that no other process of the machine can take its tasks."""
    return folder.home / "worker.secret"


def node_config(settings: NodeSettings) -> str:
    """The settings as Flower hands them to client code."""
    return f'client={settings.client} data="{settings.data}" memory="{settings.memory}"'


def arrived(running: Running, folder: NodeFolder, server: str) -> bool:
    """Whether the server has let the node in.

    Raises:
        RefusedError: It has not, and the SuperNode gave up.
    """
    if ONLINE in running.tail(1000):
        return True
    if running.alive():
        return False
    raise refusal(running.tail(40), fingerprint(read_public_key(folder.root / "key.pub")), server)


def await_arrival(running: Running, folder: NodeFolder, settings: NodeSettings, say: Say) -> None:
    """Waits until the server has let the node in; a server that does not answer may still come."""
    told = False
    while not arrived(running, folder, settings.server):
        if not told and UNREACHED in running.tail():
            say(f"client {settings.client}: {settings.server} does not answer; trying until it does")
            told = True
        time.sleep(0.2)


def refusal(said: str, key: str, server: str) -> InputError:
    """What a SuperNode's last words mean."""
    if "code: 2004" in said:
        return RefusedError(
            f"{server} refused this node's key {key}: it is not registered there (ipfl deploy register), "
            "or this node was cut off less than a minute ago and still counts as present"
        )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return InputError(
            f"{server} is not the server of this node's ca.crt: another authority signed its "
            "certificate, or it does not cover that name"
        )
    if "private key" in said.lower():
        return InputError(
            "this node's key is not an ECDSA key in OpenSSH's format (ssh-keygen -t ecdsa -b 384)"
        )
    return InputError(f"the node could not connect to {server}: {' '.join(said.split())[-300:]}")


def serve(folder: NodeFolder, say: Say) -> None:
    """A node's life: connect, answer the server, until it is told to stop.

    Raises:
        InputError: The server does not let it in, or something in its folder is wrong.
        ProcessDiedError: A part of it ended.
    """
    settings = prepare(folder)
    deadline = time.monotonic() + CUT_OFF
    while True:
        with Processes(folder.logs) as processes:
            running = start_node(processes, folder, settings)
            say(f"client {settings.client}: connecting to {settings.server}")
            try:
                await_arrival(running, folder, settings, say)
                say(f"client {settings.client}: connected")
                processes.wait_while_alive()
                if running.process.poll() == 0:  # of its own will only when it is not let in any more
                    raise InputError(
                        f"{settings.server} sent this node away: its key is no longer registered"
                    )
                processes.check()
            except RefusedError as error:
                if time.monotonic() > deadline:
                    raise
                say(f"{error}; trying again in {AGAIN:.0f} s")
        time.sleep(AGAIN)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
