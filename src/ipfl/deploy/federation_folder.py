"""The folder of a federation: `ipfl deploy init` writes it, the other commands read it.

The server's files are at the top. The files of a node are in `nodes/<i>/`, which is copied to the node's
machine and then not needed on the server any more (`accounts.json` has the node's public key).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ipfl.deploy import templates
from ipfl.deploy.credentials import (
    PRIVATE_KEY_FILE,
    PUBLIC_KEY_FILE,
    subject_alternative_name,
    write_certificates,
    write_key_pair,
)
from ipfl.deploy.registry import Registry
from ipfl.deploy.settings_files import NodeSettings, ServerConfig, ServerSettings
from ipfl.errors import InputError
from ipfl.report.config_text import commented_settings


class FileIn:
    """A path below the root of a folder.

    Args:
        name: Its name there.
        doc: What it is.
    """

    def __init__(self, name: str, doc: str):
        self.name, self.__doc__ = name, doc

    def __get__(self, folder: NodeFolder | ServerFolder, kind: type) -> Path:
        return folder.root / self.name


@dataclass(frozen=True)
class NodeFolder:
    """Paths of a node's files."""

    root: Path

    private_key = FileIn(PRIVATE_KEY_FILE, "The node's private key.")
    public_key = FileIn(PUBLIC_KEY_FILE, "The node's public key.")
    ca_certificate = FileIn("ca.crt", "Certificate of the authority that signed the server's certificate.")
    settings_file = FileIn("node.toml", "Which server, which client, which data.")
    flower_home = FileIn("flwr", "Files of Flower's commands; their working directory.")
    app = FileIn("app", "The Flower app that `ipfl deploy init` gave it.")
    logs = FileIn("logs", "Output of the node's processes.")
    secret = FileIn("flwr/worker.secret", "With it the worker, and no other process, takes tasks.")
    heartbeat = FileIn(
        "flwr/heartbeat",
        "Written by the SuperNode when it has asked for messages, and by the worker while it works on one.",
    )


@dataclass(frozen=True)
class ServerFolder:
    """Paths of the server's files."""

    root: Path

    ca_certificate = FileIn("ca.crt", "Certificate of the authority that signed the server's certificate.")
    certificate = FileIn("server.crt", "The server's certificate.")
    private_key = FileIn("server.key", "The server's private key.")
    accounts_file = FileIn("accounts.json", "Which key belongs to which client.")
    config_file = FileIn("run.toml", "Config of a run.")
    settings_file = FileIn("server.toml", "Where the server listens.")
    flower_home = FileIn("flwr", "Files of Flower's commands; their working directory.")
    socket = FileIn("flwr/superlink.sock", "Where the running SuperLink listens; only its user can open it.")
    app = FileIn("app", "The Flower app.")
    database = FileIn("superlink.db", "Flower's own database of nodes, keys and messages.")
    runs = FileIn("runs", "Results.")
    logs = FileIn("logs", "Output of the server's processes.")

    def node_folder(self, client: int) -> NodeFolder:
        """The folder of a client's node, until it is moved to the node's machine."""
        return NodeFolder(self.root / "nodes" / str(client))

    def next_run_folder(self) -> Path:
        """A folder for the results of the next run: run-1, run-2 and so on."""
        number = 1
        while (self.runs / f"run-{number}").exists():
            number += 1
        return self.runs / f"run-{number}"

    def check(self) -> None:
        """Raises InputError if a file is missing that `ipfl deploy init` writes."""
        for name in ("ca.crt", "server.crt", "server.key", "accounts.json", "server.toml"):
            if not (self.root / name).exists():
                raise InputError(f"{self.root} has no {name}: not a folder that ipfl deploy init has written")


def create_folder(
    root: Path, *, nodes: int = 3, hosts: Sequence[str] = (), ports: tuple[int, int] = (9092, 9093)
) -> ServerFolder:
    """Writes the folder of a new federation.

    Args:
        root: The folder; it must not exist yet, or be empty.
        nodes: Number of nodes to make keys and accounts for.
        hosts: Names and addresses under which nodes reach the server; the first is written to their settings.
            Without any, the server listens on loopback only.
        ports: On which the server listens for nodes, and, on loopback, for the processes of runs.

    Raises:
        InputError: The folder is not empty, or a host is neither a name nor an address.
    """
    for host in hosts:
        subject_alternative_name(host)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(f"{root} exists already: keys in use are not overwritten; choose another folder")
    folder = ServerFolder(root.resolve())
    root.mkdir(parents=True, exist_ok=True)
    write_certificates(folder.root, hosts)
    server = f"{hosts[0] if hosts else 'localhost'}:{ports[0]}"
    registry = Registry()
    for client in range(nodes):
        _write_node_files(folder, client, server)
        key = folder.node_folder(client).public_key.read_text(encoding="utf-8")
        registry = registry.with_account(key, client, f"node-{client}")
    registry.save(folder.accounts_file)
    settings = ServerSettings(
        bind="0.0.0.0" if hosts else "127.0.0.1",
        port=ports[0],
        run_port=ports[1],
    )
    _write_server_files(folder, settings, server, nodes)
    return folder


def _write_node_files(folder: ServerFolder, client: int, server: str) -> None:
    node = folder.node_folder(client)
    node.root.mkdir(parents=True)
    write_key_pair(node.root)
    node.ca_certificate.write_bytes(folder.ca_certificate.read_bytes())
    settings = NodeSettings(server=server, client=client)
    node.settings_file.write_text(commented_settings(settings), encoding="utf-8")
    _write_app(node.app)
    (node.root / "ipfl-node.service").write_text(templates.NODE_SERVICE, encoding="utf-8")


def _write_app(app: Path) -> None:
    """Writes the Flower app of this version of ipfl: a description, whose code is in the package."""
    app.mkdir()
    config = commented_settings(ServerConfig(out=Path()), unset='""')
    (app / "pyproject.toml").write_text(templates.APP + config, encoding="utf-8")


def _write_server_files(folder: ServerFolder, settings: ServerSettings, server: str, nodes: int) -> None:
    service = templates.SERVER_SERVICE.format(root=folder.root, bin=Path(sys.executable).parent)
    readme = templates.README.format(server=server, nodes=nodes, last=nodes - 1, root=folder.root)
    for path, text in (
        (folder.settings_file, commented_settings(settings)),
        (folder.config_file, templates.RUN_TOML),
        (folder.root / "ipfl-server.service", service),
        (folder.root / ".gitignore", templates.GITIGNORE),
        (folder.root / "README.md", readme),
    ):
        path.write_text(text, encoding="utf-8")
    _write_app(folder.app)
