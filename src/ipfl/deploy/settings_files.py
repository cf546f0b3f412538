"""The files that operators edit: `server.toml`, `node.toml`, and the config of a run on nodes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ipfl.config.sections import Section
from ipfl.config.whole_config import Config
from ipfl.engines import NEEDS_LOCAL_ENGINE
from ipfl.engines.flower.node_limits import NodeLimits
from ipfl.engines.flower.run_settings import MAX_CLASSES
from ipfl.errors import InputError
from ipfl.system.files import refuse_special_file


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

    bind: Literal["0.0.0.0", "127.0.0.1"] = Field(
        "127.0.0.1", description="127.0.0.1: for nodes on this machine only; 0.0.0.0: on others too"
    )
    port: int = Field(
        9092,
        ge=1,
        le=65535,
        description="port that nodes connect to, the only one that other machines need to reach",
    )
    run_port: int = Field(
        9093, ge=1, le=65535, description="port for the processes of runs, always on 127.0.0.1"
    )
    max_connections: int = Field(512, ge=1, description="connections of all nodes together")
    max_connections_per_address: int = Field(64, ge=1, description="connections from one address")

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.port == self.run_port:
            raise ValueError("port and run_port must differ: nodes must not reach what runs can do")
        return self


class NodeSettings(_SettingsFile, NodeLimits):
    """Content of node.toml, which the server cannot change."""

    server: str = Field(description="host:port of the server, a name that its certificate covers")
    client: int = Field(ge=0, description="the account that this node's key was registered for")
    data: Path = Field(
        Path("data.npz"),
        description=".npz with x and y, and x_test and y_test if there are test points; or a CSV or Parquet "
        "file, or a folder of images; stays on the node",
    )
    memory: Path = Field(
        Path("memory"), description="folder for what the client remembers; keep it over restarts"
    )
    app: Path = Field(
        Path("app"),
        description="folder of the Flower app; the node runs no other one, whatever the server sends",
    )
    modules: tuple[str, ...] = Field(
        (), description="modules that a run's config may name as module:callable"
    )
    readable: tuple[Path, ...] = Field(
        (), description="files and folders that the app may read, beside `data` and the installed packages"
    )


class ServerConfig(Section):
    """The app's run config (`[tool.flwr.app.config]`, `flwr run --run-config`)."""

    config: Path | None = Field(None, description="the run's TOML file, on the server")
    out: Path = Field(description="folder for the results, on the server")
    resume: bool = Field(False, description="go on with the run in `out`")
    rounds: int = Field(0, ge=0, description="0: as the TOML file says")
    registry: Path | None = Field(
        None, description="the accounts file; without it, nodes say which clients they are"
    )
    nodes: int = Field(2, ge=1, description="wait for so many clients")
    wait: float = Field(60.0, ge=0, description="seconds to wait for them")
    deadline: float = Field(
        300.0,
        gt=0,
        description="seconds for a reply; for clients, clients.deadline of the TOML file wins",
    )
    classes: int = Field(
        0, ge=0, le=MAX_CLASSES, description="number of classes; 0: what more than half of the nodes say"
    )
    accounts: str | None = Field(
        None, description="name under which balances outlive runs; without it, all are opened anew"
    )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> ServerConfig:
        """Reads the run config; an empty text means that a value is not set."""
        return cls.of({key: value for key, value in values.items() if value != ""})


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
