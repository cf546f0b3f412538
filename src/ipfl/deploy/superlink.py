"""The server's machine: starts a SuperLink with TLS and node authentication, and registers accounts."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

from ipfl.deploy.credentials import write_random_secret
from ipfl.deploy.flower_cli import command_path, flower_environment, run_flwr
from ipfl.deploy.folder import PROFILE_NAME, ServerFolder, ServerSettings
from ipfl.deploy.processes import ProcessDiedError, Processes, RunningProcess
from ipfl.deploy.registry import Account, Registry
from ipfl.engines.flower.flwr_internals import KEY_ALREADY_REGISTERED_TEXT
from ipfl.errors import InputError

START_SECONDS = 60.0
"""How long a SuperLink may take to answer after its start."""


def start_superlink(processes: Processes, folder: ServerFolder) -> RunningProcess:
    """Starts SuperLink and SuperExec, and registers the accounts; returns the SuperLink.

    The SuperExec, which starts ServerApps, is started here and not by the SuperLink: that one would leave our
    process group, and would take its tasks without authentication, on a port that others can reach.
    """
    folder.check()
    settings = ServerSettings.load(folder.settings_file)
    Registry.load(folder.accounts_file)
    if _is_port_in_use(settings.port):
        raise InputError(
            f"port {settings.port} is in use: another server runs, or change `port` in {folder.settings_file}"
        )
    # Python imports from the working directory first: it must not be the folder with the app.
    home = folder.flower_home
    home.mkdir(exist_ok=True)
    secret_file = home / "superexec.secret"
    write_random_secret(secret_file)
    secret_option = ("--superexec-auth-secret-file", str(secret_file))
    command = [
        command_path("flower-superlink"),
        *("--ssl-ca-certfile", str(folder.ca_certificate)),
        *("--ssl-certfile", str(folder.certificate)),
        *("--ssl-keyfile", str(folder.private_key)),
        *("--host", settings.bind, "--port", str(settings.port)),
        *("--database", str(folder.database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", *secret_option),
    ]
    superlink = processes.start("superlink", command, flower_environment(home), home)
    deadline = time.monotonic() + START_SECONDS
    while not _is_superlink_running(folder.ca_certificate, settings.port):
        processes.raise_if_one_ended()
        if time.monotonic() > deadline:
            raise ProcessDiedError(
                f"the SuperLink does not answer; {superlink.log} ends with: {superlink.last_lines()}"
            )
        time.sleep(0.2)
    command = [
        command_path("flower-superexec"),
        *("--runtime-api-address", f"127.0.0.1:{settings.port}"),
        *("--root-certificates", str(folder.ca_certificate), *secret_option),
    ]
    processes.start("superexec", command, flower_environment(home), home)
    register_accounts(folder)
    return superlink


def register_accounts(folder: ServerFolder) -> None:
    """Registers the accounts with the running SuperLink that have no node id of Flower yet."""
    registry = Registry.load(folder.accounts_file)
    for account in registry.accounts:
        if account.node is None and (node := _register_node(folder, account)) is not None:
            registry = registry.with_node_id(account.client, node)
            registry.save(folder.accounts_file)


def set_account_key(
    folder: ServerFolder, key: str, client: int | None, name: str, *, replace: bool
) -> tuple[Account, bool]:
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
    is_registered = _is_superlink_running(folder.ca_certificate, settings.port)
    if is_registered:
        if replaced is not None and replaced.node is not None:
            run_flwr(folder, "supernode", "unregister", str(replaced.node), PROFILE_NAME)
        register_accounts(folder)
    return account, is_registered


def _register_node(folder: ServerFolder, account: Account) -> int | None:
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


def _is_superlink_running(ca_certificate: Path, port: int) -> bool:
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
