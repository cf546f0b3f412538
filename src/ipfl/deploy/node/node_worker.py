"""Runs a node's client code: a process that has imported everything already, and forks for each message.

Flower starts a fresh Python for every message, which spends most of a phase on importing torch. Here a
SuperNode is started with `--isolation process`, and this worker takes its tasks: a fork costs milliseconds,
and what client code does to its process still ends with that process.

    python -m ipfl.deploy.node.node_worker 127.0.0.1:9094 NODE-FOLDER

The worker also decides what a message can do. It runs the app that is installed on the node and no other
(`ipfl.deploy.node.installed_app`), imports no module that the node's operator has not allowed, and enters a
sandbox before it takes the first task, in which the node's key cannot be read (`ipfl.deploy.node.sandbox`).
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

import ipfl.engines.flower.node_app  # noqa: F401 (imported once, for all forks)
from ipfl.deploy.federation_folder import NodeFolder
from ipfl.deploy.node.installed_app import InstalledApp
from ipfl.deploy.node.sandbox import Sandbox, refuse_system_calls
from ipfl.deploy.node.supernode import prepare_node
from ipfl.deploy.settings_files import NodeSettings
from ipfl.engines.flower.flwr_internals import SuperNodeTasks
from ipfl.errors import InputError
from ipfl.methods import METHODS, method_class
from ipfl.system.plugins import allow_modules

TASK_POLL_SECONDS = 0.4
"""Seconds between two looks for a task: a look costs 10 ms."""


def protect(folder: NodeFolder, settings: NodeSettings, port: int) -> str:
    """Takes from this process what the app of a node does not need; returns a line about it.

    Raises:
        InputError: The key would still be readable, or what the app needs would not be.
    """
    sandbox = Sandbox.for_python(
        (settings.data, settings.app, *settings.readable), (settings.memory,), (port,)
    )
    version = sandbox.enter()
    # Python's own files as well: what is imported later, such as an encoding, must be readable then.
    own_files = (Path(os.__file__), Path(torch.__file__), Path(__file__))
    for needed in (*own_files, settings.data, *settings.readable):
        if not _can_open(needed):
            raise InputError(f"this user cannot read {needed}")
    is_key_hidden = not _can_open(folder.private_key)
    if version and not is_key_hidden:
        raise InputError(
            f"{folder.private_key} is in a folder from which Python imports ({', '.join(sys.path)}), "
            "where messages could read it; move the node's folder"
        )
    how = f"sandbox: Landlock {version}" if version else "no sandbox: this system has no Landlock"
    how += (
        "; modes and Unix sockets are out of reach"
        if refuse_system_calls()
        else "; no filter of system calls"
    )
    hidden = "messages cannot read the node's key" if is_key_hidden else "messages could read the node's key"
    return f"{how}; {hidden}"


def _can_open(path: Path) -> bool:
    """Whether this process can read it: tried, because `os.access` does not know of sandboxes."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def run_tasks(tasks: SuperNodeTasks, parent: int, heartbeat: int) -> None:
    """Runs the tasks of a SuperNode, one fork each, until the parent process ends.

    While a fork is at work, the open file `heartbeat` is written to: the SuperNode waits for it and cannot.
    """
    torch.set_num_threads(1)
    for name in METHODS:  # or each fork would import its method anew
        method_class(name)
    gc.freeze()  # forks share these pages as long as no garbage collection touches them
    while os.getppid() == parent:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            os.pwrite(heartbeat, b".", 0)  # reached only if there is a fork
        token = tasks.acquire()
        if token is not None and os.fork() == 0:
            _run_in_fork(tasks, token)
        time.sleep(TASK_POLL_SECONDS)


def _run_in_fork(tasks: SuperNodeTasks, token: str) -> None:
    """Runs one task and ends the process; it never returns into the loop of its parent."""
    code = 1
    try:
        tasks.run(token)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(address: str, root: str) -> None:
    """Prepares this process, and runs the tasks of the SuperNode at `address`."""
    parent = os.getppid()
    # Not from the working directory: a message must not be able to read the secrets that are there.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path.cwd()]
    folder = NodeFolder(Path(root))
    settings = prepare_node(folder)
    app = InstalledApp.load(settings.app)
    app.pin()
    allow_modules(settings.modules)
    tasks = SuperNodeTasks(address, folder.secret.read_bytes())
    heartbeat = os.open(folder.heartbeat, os.O_WRONLY | os.O_CREAT, 0o600)  # not from within the sandbox
    print(f"app {app.hash}")
    print(protect(folder, settings, int(address.rpartition(":")[2])), flush=True)
    run_tasks(tasks, parent, heartbeat)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except InputError as error:
        sys.exit(f"error: {error}")
