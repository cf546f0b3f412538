"""The server's machine: starts a SuperLink behind the front, and registers accounts.

Three processes: the SuperLink on a Unix socket, the front on the ports (`ipfl.deploy.server.front`), and the
SuperExec, which starts the ServerApp of a run.
"""

from __future__ import annotations

import socket
import sys
import time

from ipfl.deploy.credentials import write_random_secret
from ipfl.deploy.federation_folder import ServerFolder
from ipfl.deploy.operator import control_of, is_running, synchronize_keys
from ipfl.deploy.processes import Processes, RunningProcess, flower_environment
from ipfl.deploy.registry import NodeAccount, Registry
from ipfl.deploy.server.message_store import clean_message_store
from ipfl.deploy.settings_files import ServerSettings
from ipfl.errors import InputError

FREE_SECONDS = 3.0
"""Seconds to wait for ports that a killed server still holds."""
RETURN_MEMORY = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Has glibc give the memory of long messages back to the system at once."""


def start_superlink(processes: Processes, folder: ServerFolder) -> RunningProcess:
    """Starts SuperLink, front and SuperExec, and registers the keys of all accounts; returns the SuperLink.

    The SuperExec, which starts ServerApps, is started here and not by the SuperLink: that one would leave our
    process group, and would take its tasks without authentication.
    """
    folder.check()
    settings = ServerSettings.load(folder.settings_file)
    registry = Registry.load(folder.accounts_file)
    deadline = time.monotonic() + FREE_SECONDS
    for name, port in (("port", settings.port), ("run_port", settings.run_port)):
        while _is_answered(port):
            if time.monotonic() > deadline:
                change = f"change `{name}` in {folder.settings_file}"
                raise InputError(f"port {port} is in use: another server runs, or {change}")
            time.sleep(0.1)
    folder.flower_home.mkdir(exist_ok=True)
    # Python imports from the working directory first: it must not be the folder with the app.
    home, environment = folder.flower_home, flower_environment(folder.flower_home)
    secret_file = home / "superexec.secret"
    write_random_secret(secret_file)
    clean_message_store(folder.database)
    # flower-superlink asks for certificates where nodes have keys. It does not use them: the front does.
    command = [
        *(sys.executable, "-m", "ipfl.deploy.server.superlink_process", folder.socket.name),
        *("--ssl-ca-certfile", str(folder.ca_certificate)),
        *("--ssl-certfile", str(folder.certificate)),
        *("--ssl-keyfile", str(folder.private_key)),
        *("--host", "127.0.0.1", "--port", str(settings.run_port)),
        *("--database", str(folder.database)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret_file)),
    ]
    frugal = environment | RETURN_MEMORY
    superlink = processes.start("superlink", command, frugal, home)
    command = [sys.executable, "-m", "ipfl.deploy.server.front", str(folder.root)]
    processes.start("front", command, frugal, home)
    while not _is_answered(settings.run_port):  # the front ends if the SuperLink does not answer it
        processes.raise_if_one_ended()
        time.sleep(0.2)
    command = [
        *(sys.executable, "-m", "ipfl.deploy.server.superexec_process"),
        *("--runtime-api-address", f"127.0.0.1:{settings.run_port}"),
        *("--root-certificates", str(folder.ca_certificate)),
        *("--superexec-auth-secret-file", str(secret_file)),
    ]
    processes.start("superexec", command, environment, home)
    with control_of(folder) as control:
        synchronize_keys(control, registry)
    return superlink


def set_account_key(
    folder: ServerFolder, key: str, client: int | None, name: str, *, replace: bool
) -> tuple[NodeAccount, bool]:
    """Adds an account for a node's public key, or replaces the key of an account.

    Returns:
        The account, and whether the key was registered with the SuperLink; if not, because no SuperLink runs,
        that happens at its next start.
    """
    folder.check()
    before = Registry.load(folder.accounts_file)
    after = before.with_account(key, client, name, replace=replace)
    if is_registered := is_running(folder):
        with control_of(folder) as control:
            synchronize_keys(control, after)
    after.save(folder.accounts_file)
    (account,) = set(after.accounts) - set(before.accounts)
    return account, is_registered


def _is_answered(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
