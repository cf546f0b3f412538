"""The server's machine: starts a SuperLink behind the front, and registers accounts.

Three processes: the SuperLink on a Unix socket, the front on the ports (`ipfl.deploy.server.front`), and the
SuperExec, which starts the ServerApp of a run.
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from pathlib import Path

from ipfl.deploy.credentials import write_random_secret
from ipfl.deploy.federation_folder import ServerFolder
from ipfl.deploy.operator import control_of, is_running, synchronize_keys
from ipfl.deploy.processes import ProcessDiedError, Processes, RunningProcess, flower_environment
from ipfl.deploy.registry import NodeAccount, Registry
from ipfl.deploy.server.message_store import clean_message_store
from ipfl.deploy.settings_files import ServerSettings
from ipfl.errors import InputError

START_SECONDS = 60.0
"""How long a server may take to answer after its start."""
FREE_SECONDS = 3.0
"""How long a port that is in use is waited for."""
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
    for name, port in (("port", settings.port), ("run_port", settings.run_port)):
        if _is_port_in_use(port):
            raise InputError(
                f"port {port} is in use: another server runs, or change `{name}` in {folder.settings_file}"
            )
    folder.flower_home.mkdir(exist_ok=True)
    # Python imports from the working directory first: it must not be the folder with the app.
    home, environment = folder.flower_home, flower_environment(folder.flower_home)
    secret_file = home / "superexec.secret"
    write_random_secret(secret_file)
    clean_message_store(folder.database)
    frugal = environment | RETURN_MEMORY
    superlink = processes.start("superlink", _superlink_command(folder, settings, secret_file), frugal, home)
    command = [sys.executable, "-m", "ipfl.deploy.server.front", str(folder.root)]
    front = processes.start("front", command, frugal, home)
    deadline = time.monotonic() + START_SECONDS
    while not _is_server_running(folder.ca_certificate, settings.run_port):
        processes.raise_if_one_ended()
        if time.monotonic() > deadline:
            raise ProcessDiedError(
                f"the server does not answer; {superlink.log} ends with: {superlink.last_lines()}, "
                f"{front.log} with: {front.last_lines()}"
            )
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


def _superlink_command(folder: ServerFolder, settings: ServerSettings, secret_file: Path) -> list[str]:
    # flower-superlink asks for certificates where nodes have keys. It does not use them: the front does.
    return [
        *(sys.executable, "-m", "ipfl.deploy.server.superlink_process", folder.socket.name),
        *("--ssl-ca-certfile", str(folder.ca_certificate)),
        *("--ssl-certfile", str(folder.certificate)),
        *("--ssl-keyfile", str(folder.private_key)),
        *("--host", "127.0.0.1", "--port", str(settings.run_port)),
        *("--database", str(folder.database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret_file)),
    ]


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


def _is_port_in_use(port: int) -> bool:
    """Whether somebody listens there, and still does after a moment: a server that was killed ends then."""
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)):
                return False
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)


def _is_server_running(ca_certificate: Path, port: int) -> bool:
    """Whether a server with a certificate of this authority answers on this machine."""
    context = ssl.create_default_context(cafile=str(ca_certificate))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=2) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except OSError:
        return False
