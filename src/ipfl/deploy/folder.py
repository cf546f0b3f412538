"""The folder that a federation is deployed from: `ipfl deploy init` writes it, the other commands read it.

Everything of the server lies at the top, everything of a node in `nodes/<i>/`, which is copied to its machine
and never needed on the server again (but for the public key, which is in the book of accounts).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from ipfl.core.sections import Section
from ipfl.deploy import texts
from ipfl.deploy.certificates import alternative_name, write_certificates
from ipfl.deploy.keys import PUBLIC, write_key_pair
from ipfl.deploy.register import Registry
from ipfl.errors import InputError

PROFILE = "ipfl"
"""Name of the connection profile for Flower's own commands."""
PORT = 9092
Bind = Literal["0.0.0.0", "127.0.0.1"]
EVERYWHERE: Bind = "0.0.0.0"
LOOPBACK: Bind = "127.0.0.1"


class _Settings(Section):
    """A TOML file that holds one section."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads and checks it."""
        try:
            return cls.of(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror} (ipfl deploy init makes a folder with it)"
            ) from error
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


class ServerSettings(_Settings):
    """server.toml."""

    bind: Bind = Field(EVERYWHERE, description="reached from everywhere, or from this machine only")
    port: int = Field(PORT, ge=1, le=65535, description="port that nodes and operators connect to")


class NodeSettings(_Settings):
    """node.toml."""

    server: str = Field(description="host:port of the server, a name that its certificate covers")
    client: int = Field(ge=0, description="the account that this node's key was registered for")
    data: Path = Field(description=".npz with x and y, and x_test and y_test if there are test points")
    memory: Path = Field(Path("memory"), description="where the client keeps what it remembers")


@dataclass(frozen=True)
class NodeFolder:
    """Where everything of one node lies."""

    root: Path

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.root / "key"

    @property
    def authority(self) -> Path:
        """Certificate that it checks the server's against."""
        return self.root / "ca.crt"

    @property
    def settings(self) -> Path:
        """Which server, which client, which data."""
        return self.root / "node.toml"

    @property
    def home(self) -> Path:
        """Flower's own files."""
        return self.root / "flwr"

    @property
    def logs(self) -> Path:
        """What its processes print."""
        return self.root / "logs"


@dataclass(frozen=True)
class ServerFolder:
    """Where everything of the server lies."""

    root: Path

    @property
    def authority(self) -> Path:
        """Certificate that everybody checks the server's against."""
        return self.root / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.root / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.root / "server.key"

    @property
    def accounts(self) -> Path:
        """The book of accounts."""
        return self.root / "accounts.json"

    @property
    def config(self) -> Path:
        """What is run."""
        return self.root / "run.toml"

    @property
    def settings(self) -> Path:
        """Where the server listens."""
        return self.root / "server.toml"

    @property
    def home(self) -> Path:
        """Flower's own files, the connection profile among them."""
        return self.root / "flwr"

    @property
    def app(self) -> Path:
        """What Flower runs."""
        return self.root / "app"

    @property
    def database(self) -> Path:
        """Flower's own book of nodes, keys and messages."""
        return self.root / "superlink.db"

    @property
    def runs(self) -> Path:
        """Results."""
        return self.root / "runs"

    @property
    def logs(self) -> Path:
        """What its processes print."""
        return self.root / "logs"

    def node(self, client: int) -> NodeFolder:
        """The folder of a client's node, as long as it is here."""
        return NodeFolder(self.root / "nodes" / str(client))

    def check(self) -> None:
        """Refuses a folder that `init` did not write."""
        for path in (self.authority, self.certificate, self.key, self.accounts, self.settings):
            if not path.exists():
                raise InputError(
                    f"{self.root} has no {path.name}: not a folder that ipfl deploy init has written"
                )


def init(
    root: Path, *, nodes: int = 3, hosts: Sequence[str] = (), port: int = PORT, bind: Bind = EVERYWHERE
) -> ServerFolder:
    """Writes a folder that a federation can be deployed from.

    Args:
        root: The folder; it must not be there yet, or be empty.
        nodes: Number of nodes to make keys and accounts for.
        hosts: Names and addresses under which nodes reach the server; the first is written to their settings.
        port: Where the server listens.
        bind: Address that it listens on.

    Raises:
        InputError: The folder holds something, or a host is no host.
    """
    for host in hosts:
        alternative_name(host)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError(f"{root} is there already: keys in use are not overwritten; choose another folder")
    folder = ServerFolder(root.resolve())
    root.mkdir(parents=True, exist_ok=True)
    write_certificates(folder.root, hosts)
    server = f"{hosts[0] if hosts else 'localhost'}:{port}"
    registry = Registry()
    for client in range(nodes):
        _write_node(folder, client, server)
        line = (folder.node(client).root / PUBLIC).read_text(encoding="utf-8")
        registry = registry.opened(line, client, f"node-{client}")
    registry.save(folder.accounts)
    _write_server(folder, bind, port, server, nodes)
    return folder


def _write_node(folder: ServerFolder, client: int, server: str) -> None:
    node = folder.node(client)
    node.root.mkdir(parents=True)
    write_key_pair(node.root)
    node.authority.write_bytes(folder.authority.read_bytes())
    node.settings.write_text(texts.NODE_TOML.format(server=server, client=client), encoding="utf-8")
    _script(node.root / "start-node", texts.START_NODE)
    (node.root / "ipfl-node.service").write_text(texts.NODE_SERVICE, encoding="utf-8")


def _write_server(folder: ServerFolder, bind: Bind, port: int, server: str, nodes: int) -> None:
    folder.settings.write_text(texts.SERVER_TOML.format(bind=bind, port=port), encoding="utf-8")
    folder.config.write_text(texts.RUN_TOML, encoding="utf-8")
    folder.home.mkdir()
    (folder.home / "config.toml").write_text(
        texts.PROFILE.format(profile=PROFILE, port=port, authority=folder.authority), encoding="utf-8"
    )
    folder.app.mkdir()
    (folder.app / "pyproject.toml").write_text(texts.APP, encoding="utf-8")
    _script(folder.root / "start-server", texts.START_SERVER)
    service = texts.SERVER_SERVICE.format(root=folder.root, bin=Path(sys.executable).parent)
    (folder.root / "ipfl-server.service").write_text(service, encoding="utf-8")
    (folder.root / ".gitignore").write_text(texts.GITIGNORE, encoding="utf-8")
    (folder.root / "README.md").write_text(
        texts.README.format(server=server, nodes=nodes, last=nodes - 1, root=folder.root), encoding="utf-8"
    )


def _script(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)
