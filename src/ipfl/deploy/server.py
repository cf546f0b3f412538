"""The server's machine: a SuperLink with TLS and node authentication, and Flower's commands against it."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipfl.deploy.folder import PROFILE, ServerFolder, ServerSettings
from ipfl.deploy.processes import ProcessDiedError, Processes, Running, environment
from ipfl.deploy.register import Account, Registry
from ipfl.deploy.secrets import fresh_secret
from ipfl.errors import InputError

START = 60.0
"""Seconds that a SuperLink has to answer after its start."""
KNOWN = "[code: 23]"
"""What Flower says of a public key that it has registered already."""

Say = Callable[[str], None]


def start_server(processes: Processes, folder: ServerFolder) -> Running:
    """Starts the SuperLink, waits until it answers, and registers the accounts with it.

    The process that starts ServerApps is ours too: Flower's own would leave our process group, and take its
    tasks without proving who it is, on a port that others can reach.
    """
    folder.check()
    settings = ServerSettings.load(folder.settings)
    Registry.load(folder.accounts)
    if _listening(settings.port):
        raise InputError(
            f"port {settings.port} is in use: another server, or change `port` in {folder.settings}"
        )
    # It works in a folder of its own: the app's modules must come from where they are installed.
    folder.home.mkdir(exist_ok=True)
    secret = ("--superexec-auth-secret-file", str(fresh_secret(folder.home / "superexec.secret")))
    command = [
        *installed("flower-superlink"),
        *("--ssl-ca-certfile", str(folder.authority)),
        *("--ssl-certfile", str(folder.certificate)),
        *("--ssl-keyfile", str(folder.key)),
        *("--host", settings.bind, "--port", str(settings.port)),
        *("--database", str(folder.database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--isolation", "process", *secret),
    ]
    env = environment(folder.home)
    running = processes.start("superlink", command, env, folder.home)
    deadline = time.monotonic() + START
    while not _answers(folder.authority, settings.port):
        processes.check()
        if time.monotonic() > deadline:
            raise ProcessDiedError(
                f"the SuperLink does not answer; {running.log} ends with: {running.tail()}"
            )
        time.sleep(0.2)
    command = [
        *installed("flower-superexec"),
        *("--runtime-api-address", f"127.0.0.1:{settings.port}"),
        *("--root-certificates", str(folder.authority), *secret),
    ]
    processes.start("superexec", command, env, folder.home)
    enrol(folder)
    return running


def enrol(folder: ServerFolder) -> None:
    """Registers every account with the running SuperLink that it does not know yet."""
    registry = Registry.load(folder.accounts)
    for account in registry.accounts:
        if account.node is None and (node := _register(folder, account)) is not None:
            registry = registry.enrolled(account.client, node)
            registry.save(folder.accounts)


def open_account(
    folder: ServerFolder, key: str, client: int | None, name: str, *, replaces: bool
) -> tuple[Account, bool]:
    """Enters a node's public key into the book, and registers it with the SuperLink if that runs.

    Returns:
        The account, and whether the SuperLink was told; if not, it learns of it when it starts.
    """
    folder.check()
    before = Registry.load(folder.accounts)
    if replaces:
        if client is None:
            raise InputError("--replace needs --client: whose key is it?")
        after, old = before.rekeyed(client, key), before.account(client)
    else:
        after, old = before.opened(key, client, name), None
    after.save(folder.accounts)
    account = next(one for one in after.accounts if before.account(one.client) != one)
    settings = ServerSettings.load(folder.settings)
    told = _answers(folder.authority, settings.port)
    if told:
        if old is not None and old.node is not None:
            flwr(folder, "supernode", "unregister", str(old.node), PROFILE)
        enrol(folder)
    return account, told


def _register(folder: ServerFolder, account: Account) -> int | None:
    """The id that Flower gives the account's node; None if it knows the key already."""
    public = folder.home / f"client-{account.client}.pub"
    public.write_text(account.key + "\n", encoding="utf-8")
    name = account.name or f"client-{account.client}"
    try:
        answer = flwr(folder, "supernode", "register", str(public), PROFILE, "--name", name)
    finally:
        public.unlink()
    if answer.get("success"):
        return int(answer["node-id"])
    if KNOWN in str(answer.get("error-message")):
        return None
    raise RuntimeError(f"Flower did not register client {account.client}: {answer.get('error-message')}")


def flwr(folder: ServerFolder, *arguments: str) -> dict[str, Any]:
    """Runs one of Flower's own commands with JSON for an answer."""
    done = subprocess.run(
        [*installed("flwr"), *arguments, "--format", "json"],
        env=environment(folder.home),
        cwd=folder.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = " ".join((done.stderr or done.stdout).split())
        raise RuntimeError(f"flwr {' '.join(arguments[:2])} failed: {said[-400:]}") from None
    if not isinstance(answer, dict):
        raise RuntimeError(f"flwr {' '.join(arguments[:2])} answered {answer!r}")
    return answer


def follow(folder: ServerFolder, run: str) -> Iterator[str]:
    """What a run prints, line by line, until it is over."""
    with subprocess.Popen(
        [*installed("flwr"), "log", run, PROFILE, "--stream"],
        env=environment(folder.home),
        cwd=folder.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for us, who stop the run first
    ) as stream:
        assert stream.stdout is not None
        try:
            for line in stream.stdout:
                yield line.rstrip("\n")
        finally:
            with suppress(ProcessLookupError):
                stream.terminate()


def installed(name: str) -> list[str]:
    """A command that is installed beside this Python, whatever the PATH says."""
    return [str(Path(sys.executable).parent / name)]


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(authority: Path, port: int) -> bool:
    """Whether a server with a certificate of ours listens on this machine."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=2) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except OSError:
        return False
