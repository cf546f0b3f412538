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
from ipfl.deploy.federation_folder import PROFILE_NAME, ServerFolder, ServerSettings
from ipfl.deploy.flower_cli import flower_environment, run_flwr
from ipfl.deploy.operator_access import renew_operator_token
from ipfl.deploy.processes import ProcessDiedError, Processes, RunningProcess
from ipfl.deploy.registry import NodeAccount, Registry
from ipfl.deploy.server.message_store import clean_message_store
from ipfl.engines.flower.flwr_internals import KEY_ALREADY_REGISTERED_TEXT
from ipfl.errors import InputError

START_SECONDS = 60.0
"""How long a server may take to answer after its start."""
RETURN_MEMORY = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Has glibc give the memory of long messages back to the system at once."""
SOCKET_FILE = "superlink.sock"
"""The SuperLink's Unix socket, in the working directory of its processes: the path of a socket may not have
more than 107 characters."""


def start_superlink(processes: Processes, folder: ServerFolder) -> RunningProcess:
    """Starts SuperLink, front and SuperExec, and registers the accounts; returns the SuperLink.

    The SuperExec, which starts ServerApps, is started here and not by the SuperLink: that one would leave our
    process group, and would take its tasks without authentication.
    """
    folder.check()
    settings = ServerSettings.load(folder.settings_file)
    Registry.load(folder.accounts_file)
    for name, port in (("port", settings.port), ("operator_port", settings.operator_port)):
        if _is_port_in_use(port):
            raise InputError(
                f"port {port} is in use: another server runs, or change `{name}` in {folder.settings_file}"
            )
    renew_operator_token(folder, settings)
    # Python imports from the working directory first: it must not be the folder with the app.
    home, environment = folder.flower_home, flower_environment(folder.flower_home)
    secret_file = home / "superexec.secret"
    write_random_secret(secret_file)
    clean_message_store(folder.database)
    frugal = environment | RETURN_MEMORY
    superlink = processes.start("superlink", _superlink_command(folder, settings, secret_file), frugal, home)
    front = processes.start("front", _front_command(folder, settings), frugal, home)
    deadline = time.monotonic() + START_SECONDS
    while not _is_server_running(folder.ca_certificate, settings.operator_port):
        processes.raise_if_one_ended()
        if time.monotonic() > deadline:
            raise ProcessDiedError(
                f"the server does not answer; {superlink.log} ends with: {superlink.last_lines()}, "
                f"{front.log} with: {front.last_lines()}"
            )
        time.sleep(0.2)
    command = [
        *(sys.executable, "-m", "ipfl.deploy.server.superexec_process"),
        *("--runtime-api-address", f"127.0.0.1:{settings.operator_port}"),
        *("--root-certificates", str(folder.ca_certificate)),
        *("--superexec-auth-secret-file", str(secret_file)),
    ]
    processes.start("superexec", command, environment, home)
    register_accounts(folder)
    return superlink


def _superlink_command(folder: ServerFolder, settings: ServerSettings, secret_file: Path) -> list[str]:
    # flower-superlink asks for certificates where nodes have keys. It does not use them: the front does.
    return [
        *(sys.executable, "-m", "ipfl.deploy.server.superlink_process", SOCKET_FILE),
        *("--ssl-ca-certfile", str(folder.ca_certificate)),
        *("--ssl-certfile", str(folder.certificate)),
        *("--ssl-keyfile", str(folder.private_key)),
        *("--host", "127.0.0.1", "--port", str(settings.operator_port)),
        *("--database", str(folder.database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret_file)),
    ]


def _front_command(folder: ServerFolder, settings: ServerSettings) -> list[str]:
    return [
        *(sys.executable, "-m", "ipfl.deploy.server.front", "--socket", SOCKET_FILE),
        *("--certificate", str(folder.certificate), "--private-key", str(folder.private_key)),
        *("--token-file", str(folder.operator_token), "--accounts", str(folder.accounts_file)),
        *("--bind", settings.bind, "--port", str(settings.port)),
        *("--operator-port", str(settings.operator_port)),
        *("--max-message-mb", str(settings.max_message_mb)),
        *("--max-connections", str(settings.max_connections)),
        *("--max-connections-per-address", str(settings.max_connections_per_address)),
        *("--idle-seconds", str(settings.idle_seconds)),
    ]


def register_accounts(folder: ServerFolder) -> None:
    """Registers the accounts with the running SuperLink that have no node id of Flower yet."""
    registry = Registry.load(folder.accounts_file)
    for account in registry.accounts:
        if account.node is None and (node := _register_node(folder, account)) is not None:
            registry = registry.with_node_id(account.client, node)
            registry.save(folder.accounts_file)


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
    if replace:
        if client is None:
            raise InputError("--replace needs --client: whose key is replaced?")
        after, replaced = before.with_key(client, key), before.account(client)
    else:
        after, replaced = before.with_account(key, client, name), None
    after.save(folder.accounts_file)
    account = next(account for account in after.accounts if before.account(account.client) != account)
    settings = ServerSettings.load(folder.settings_file)
    is_registered = _is_server_running(folder.ca_certificate, settings.operator_port)
    if is_registered:
        if replaced is not None and replaced.node is not None:
            run_flwr(folder, "supernode", "unregister", str(replaced.node), PROFILE_NAME)
        register_accounts(folder)
    return account, is_registered


def _register_node(folder: ServerFolder, account: NodeAccount) -> int | None:
    """Registers an account's key; returns Flower's id of the node, None if the key was registered before."""
    key_file = folder.flower_home / f"client-{account.client}.pub"
    key_file.write_text(account.key + "\n", encoding="utf-8")
    name = account.name or f"client-{account.client}"
    try:
        answer = run_flwr(folder, "supernode", "register", str(key_file), PROFILE_NAME, "--name", name)
    finally:
        key_file.unlink()
    if answer.get("success"):
        return int(answer["node-id"])
    if KEY_ALREADY_REGISTERED_TEXT in str(answer.get("error-message")):
        return None
    raise RuntimeError(f"Flower did not register client {account.client}: {answer.get('error-message')}")


def _is_port_in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


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
