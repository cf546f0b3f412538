"""The folder of a federation: `ipfl deploy init` writes it, the other commands read it.

The server's files are at the top. The files of a node are in `nodes/<i>/`, which is copied to the node's
machine and then not needed on the server any more (`accounts.json` has the node's public key).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ipfl.config.sections import Section
from ipfl.config.whole_config import Config
from ipfl.deploy import templates
from ipfl.deploy.credentials import (
    PRIVATE_KEY_FILE,
    PUBLIC_KEY_FILE,
    subject_alternative_name,
    write_certificates,
    write_key_pair,
)
from ipfl.deploy.registry import NodeAccount, Registry
from ipfl.engines import NEEDS_LOCAL_ENGINE
from ipfl.engines.flower.node_limits import NodeLimits
from ipfl.errors import InputError
from ipfl.system.files import refuse_special_file

DEFAULT_PORT = 9092
DEFAULT_RUN_PORT = 9093
BindAddress = Literal["0.0.0.0", "127.0.0.1"]
ALL_INTERFACES: BindAddress = "0.0.0.0"
LOOPBACK_INTERFACE: BindAddress = "127.0.0.1"


class _SettingsFile(Section):
    """Settings in a TOML file without tables."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads and checks the file."""
        refuse_special_file(path)
        try:
            return cls.of(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror} (ipfl deploy init writes a folder with it)"
            ) from error
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


class ServerSettings(_SettingsFile):
    """Content of server.toml."""

    bind: BindAddress = Field(
        LOOPBACK_INTERFACE,
        description="127.0.0.1: for nodes on this machine only; 0.0.0.0: on others too",
    )
    port: int = Field(DEFAULT_PORT, ge=1, le=65535, description="port that nodes connect to")
    run_port: int = Field(
        DEFAULT_RUN_PORT,
        ge=1,
        le=65535,
        description="port for the processes of runs, always on 127.0.0.1",
    )
    max_message_mb: int = Field(
        16, ge=6, le=2047, description="longest message of a node; Flower sends arrays in parts of 5 MB"
    )
    max_connections: int = Field(512, ge=1, description="connections of all nodes together")
    max_connections_per_address: int = Field(64, ge=1, description="connections from one address")
    idle_seconds: float = Field(60.0, gt=0, description="then a connection without a request is closed")

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.port == self.run_port:
            raise ValueError("port and run_port must differ: nodes must not reach what runs can do")
        return self


class NodeSettings(_SettingsFile, NodeLimits):
    """Content of node.toml."""

    server: str = Field(description="host:port of the server, a name that its certificate covers")
    client: int = Field(ge=0, description="the account that this node's key was registered for")
    data: Path = Field(
        description=".npz with x and y, and x_test and y_test if there are test points; or a CSV or Parquet "
        "file, or a folder of images"
    )
    memory: Path = Field(Path("memory"), description="folder for what the client remembers between rounds")
    app: Path = Field(Path("app"), description="folder of the Flower app; the node runs no other one")
    modules: tuple[str, ...] = Field(
        (), description="modules that a run's config may name as module:callable"
    )
    readable: tuple[Path, ...] = Field(
        (), description="files and folders that the app may read, beside `data` and the installed packages"
    )


def load_run_config(
    path: Path | None, sets: Sequence[str] = (), overrides: Mapping[str, Any] | None = None
) -> Config:
    """Reads the config of a run on nodes (run.toml); the arguments are those of `Config.load`.

    Settings of `[aggregate]` that are omitted are those of deployed nodes.

    Raises:
        InputError: It is not valid, or it asks for clients that fail or cheat on purpose. Only the local
            engine can play those.
    """
    config = Config.load(path, sets, overrides)
    if config.adversary.share or config.faults.has_client_faults:
        raise InputError(NEEDS_LOCAL_ENGINE)
    return config.model_copy(update={"aggregate": config.aggregate.on_nodes()})


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
        for path in (
            self.ca_certificate,
            self.certificate,
            self.private_key,
            self.accounts_file,
            self.settings_file,
        ):
            if not path.exists():
                raise InputError(
                    f"{self.root} has no {path.name}: not a folder that ipfl deploy init has written"
                )


def create_folder(
    root: Path,
    *,
    nodes: int = 3,
    hosts: Sequence[str] = (),
    port: int = DEFAULT_PORT,
    run_port: int = DEFAULT_RUN_PORT,
) -> ServerFolder:
    """Writes the folder of a new federation.

    Args:
        root: The folder; it must not exist yet, or be empty.
        nodes: Number of nodes to make keys and accounts for.
        hosts: Names and addresses under which nodes reach the server; the first is written to their settings.
            Without any, the server listens on loopback only.
        port: Port on which the server listens for nodes.
        run_port: Port on which it listens for the processes of runs, on loopback.

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
    server = f"{hosts[0] if hosts else 'localhost'}:{port}"
    accounts = []
    for client in range(nodes):
        _write_node_files(folder, client, server)
        key = folder.node_folder(client).public_key.read_text(encoding="utf-8")
        accounts.append(NodeAccount(client=client, key=key, name=f"node-{client}"))
    registry = Registry.of(accounts)
    registry.save(folder.accounts_file)
    settings = ServerSettings(
        bind=ALL_INTERFACES if hosts else LOOPBACK_INTERFACE, port=port, run_port=run_port
    )
    _write_server_files(folder, settings, server, nodes)
    return folder


def _write_node_files(folder: ServerFolder, client: int, server: str) -> None:
    node = folder.node_folder(client)
    node.root.mkdir(parents=True)
    write_key_pair(node.root)
    node.ca_certificate.write_bytes(folder.ca_certificate.read_bytes())
    node.settings_file.write_text(templates.NODE_TOML.format(server=server, client=client), encoding="utf-8")
    write_app(node.app)
    (node.root / "ipfl-node.service").write_text(templates.NODE_SERVICE, encoding="utf-8")


def write_app(app: Path) -> None:
    """Writes the Flower app of this version of ipfl: a description, whose code is in the package."""
    app.mkdir()
    (app / "pyproject.toml").write_text(templates.APP, encoding="utf-8")


def _write_server_files(folder: ServerFolder, settings: ServerSettings, server: str, nodes: int) -> None:
    text = templates.SERVER_TOML.format(**settings.model_dump())
    folder.settings_file.write_text(text, encoding="utf-8")
    folder.config_file.write_text(templates.RUN_TOML, encoding="utf-8")
    write_app(folder.app)
    service = templates.SERVER_SERVICE.format(root=folder.root, bin=Path(sys.executable).parent)
    (folder.root / "ipfl-server.service").write_text(service, encoding="utf-8")
    (folder.root / ".gitignore").write_text(templates.GITIGNORE, encoding="utf-8")
    readme = templates.README.format(server=server, nodes=nodes, last=nodes - 1, root=folder.root)
    (folder.root / "README.md").write_text(readme, encoding="utf-8")
