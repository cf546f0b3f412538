"""`ipfl deploy`: a federation on machines of its own. Functions import what they need: `--help` is fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipfl.cli.exit_codes import FAILED, INTERRUPTED, exit_with_error
from ipfl.cli.options import MAX_WORKERS, AccountsName, Out, Sets, new_run_folder
from ipfl.errors import InputError

if TYPE_CHECKING:
    from ipfl.deploy.federation_folder import ServerFolder

app = typer.Typer(no_args_is_help=True, help="Run a federation on several machines, with Flower.")

MAX_NEW_NODES = 1000
"""Folders that `init` writes, each with the keys of all nodes. `register` adds more."""
MAX_TRIED_NODES = MAX_WORKERS // 2
"""Nodes on this machine, two processes each."""
MAX_ROUNDS = 2**31 - 1
"""As in a config."""
MAX_CLIENT = 2**31 - 2
"""Largest id of a client (`ipfl.deploy.registry.NodeAccount`)."""
MAX_CLASSES = 2**16
"""The same as `ipfl.engines.flower.run_settings.MAX_CLASSES`, whose module takes long to import."""
MAX_SECONDS = 30 * 24 * 60 * 60
"""Of `--wait` and `--deadline`: thirty days."""


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ipfl deploy init` wrote.")]
Rounds = Annotated[
    int | None,
    typer.Option("--rounds", min=1, max=MAX_ROUNDS, metavar="R", help="Rounds; default: as in the config."),
]


@contextmanager
def _clean_stop(message: str) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM stop all that was started; after Ctrl-C, the message is the last line.

    A run that failed is said in one line: what led to it was printed before.
    """
    from ipfl.deploy.operator import RunFailedError
    from ipfl.system.signals import exit_on_sigterm

    with exit_on_sigterm():
        try:
            yield
        except KeyboardInterrupt:
            exit_with_error(f"interrupted; {message}", INTERRUPTED)
        except RunFailedError as error:
            exit_with_error(str(error), FAILED)


def _server_folder(path: Path) -> ServerFolder:
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.federation_folder import ServerFolder

    folder = ServerFolder(path.resolve())
    folder.check()
    return folder


@app.command("init", epilog="For example:\n\nipfl deploy init hospital --nodes 3 --host fl.example.org")
def init_folder(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must not exist yet.")],
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=MAX_NEW_NODES, metavar="N", help="Number of nodes.")
    ] = 3,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Name or address under which nodes on other machines reach the server; may be repeated. "
            "Default: the server is reached from this machine only.",
        ),
    ] = None,
) -> None:
    """Write the folder of a federation: certificates, keys, accounts, settings, units, a README."""
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.federation_folder import create_folder
    from ipfl.deploy.settings_files import ServerSettings

    written = create_folder(folder, nodes=nodes, hosts=hosts or ())
    settings = ServerSettings.load(written.settings_file)
    typer.echo(f"{written.root}: certificates, {nodes} node keys and accounts; README.md has the next steps")
    if hosts:
        typer.echo(
            f"The server will listen on all interfaces, port {settings.port}: everybody who reaches it can "
            "try to connect, and only nodes with a registered key get further."
        )
    else:
        typer.echo("The server will listen on 127.0.0.1 only; with --host NAME other machines reach it.")


@app.command()
def register(
    folder: Folder,
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="Public key of the node.")],
    client: Annotated[
        int | None,
        typer.Option(
            "--client", metavar="I", min=0, max=MAX_CLIENT, help="Client id; default: the next free."
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="A name for people to read.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the key of the client's account with this one.")
    ] = False,
) -> None:
    """Add an account for a node's key, or replace the key of an account."""
    server = _server_folder(folder)
    from ipfl.deploy.credentials import read_node_public_key
    from ipfl.deploy.server.superlink import set_account_key

    public_key = read_node_public_key(key).decode()
    account, is_registered = set_account_key(server, public_key, client, name, replace=replace)
    state = "registered with the server" if is_registered else "the server registers it when it starts"
    typer.echo(f"client {account.client}: key {account.fingerprint}; {state}")


@app.command()
def server(folder: Folder) -> None:
    """Start the server; it runs until Ctrl-C or SIGTERM."""
    found = _server_folder(folder)
    from ipfl.deploy.processes import Processes
    from ipfl.deploy.server.superlink import start_superlink

    with _clean_stop("the server was stopped"), Processes(found.logs) as processes:
        superlink = start_superlink(processes, found)
        typer.echo(f"server: running; its log is {superlink.log}")
        processes.wait_until_one_ends()
        processes.raise_if_one_ended()


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder, with node.toml and key.")],
) -> None:
    """Start a node; it runs until Ctrl-C or SIGTERM."""
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.federation_folder import NodeFolder
    from ipfl.deploy.node.supernode import run_node

    with _clean_stop("the node was stopped"):
        run_node(NodeFolder(folder.resolve()), typer.echo)


RunConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Config of the run; default: run.toml in DIR."),
]
ResumedRun = Annotated[
    Path | None, typer.Option("--resume", metavar="RUN", help="Continue a run that was stopped.")
]
NodesToWaitFor = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        max=MAX_CLIENT + 1,
        metavar="N",
        help="Nodes to wait for; default: one for each account.",
    ),
]
Wait = Annotated[
    int,
    typer.Option("--wait", min=0, max=MAX_SECONDS, metavar="S", help="Seconds to wait for them."),
]
Deadline = Annotated[
    int,
    typer.Option(
        "--deadline",
        min=1,
        max=MAX_SECONDS,
        metavar="S",
        help="Seconds that a node may take to reply; clients.deadline of the config replaces it for clients.",
    ),
]
ClassCount = Annotated[
    int | None,
    typer.Option(
        "--classes",
        min=1,
        max=MAX_CLASSES,
        metavar="N",
        help="Number of classes; default: what more than half of the nodes say.",
    ),
]


@app.command("run", epilog="For example:\n\nipfl deploy run hospital --resume hospital/runs/run-1")
def run_method(
    folder: Folder,
    config: RunConfigFile = None,
    rounds: Rounds = None,
    resume: ResumedRun = None,
    nodes: NodesToWaitFor = None,
    wait: Wait = 120,
    deadline: Deadline = 300,
    classes: ClassCount = None,
    accounts: AccountsName = None,
) -> None:
    """Run a method on the connected nodes, and show its progress. Ctrl-C stops the run."""
    found = _server_folder(folder)
    from ipfl.deploy.operator import RunValue, run_and_follow
    from ipfl.deploy.registry import Registry
    from ipfl.deploy.settings_files import load_run_config

    config_file = (config or found.config_file).resolve()
    load_run_config(config_file)  # what is wrong with it is said now, not after the run has started
    if resume is not None and accounts is not None:
        raise InputError("--resume takes no --accounts: the run goes on with those that it was begun with")
    accounts_known = len(Registry.load(found.accounts_file).accounts)
    if nodes is not None and nodes > accounts_known:
        raise InputError(f"--nodes {nodes}: {found.root} has accounts for {accounts_known} nodes only")
    out = (resume or found.next_run_folder()).resolve()
    settings: dict[str, RunValue] = {
        "config": str(config_file),
        "registry": str(found.accounts_file),
        "out": str(out),
        "resume": resume is not None,
        "rounds": rounds or 0,
        "nodes": nodes or accounts_known,
        "wait": float(wait),
        "deadline": float(deadline),
        "classes": classes or 0,
        "accounts": accounts or "",
    }
    with _clean_stop(f"to go on: ipfl deploy run {found.root} --resume {out}"):
        run_and_follow(found, settings, typer.echo)
    typer.echo(f"Results in {out}")


@app.command("try", epilog="For example:\n\nipfl deploy try --nodes 3 --rounds 2")
def try_on_this_machine(
    nodes: Annotated[
        int,
        typer.Option(
            "--nodes", min=1, max=MAX_TRIED_NODES, metavar="N", help="Number of nodes, two processes each."
        ),
    ] = 3,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Config of the run; default: a small example."),
    ] = None,
    sets: Sets = None,
    rounds: Rounds = None,
    out: Out = None,
) -> None:
    """Try everything on this machine: start server and nodes with TLS and keys, run a method, stop them.

    Each node has its own processes, key and data. The data is that of the config's [task].
    """
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.local_federation import run_trial, trial_config

    chosen = trial_config(config, sets or (), nodes, rounds)
    folder = (out or new_run_folder("deploy-try")).resolve()
    with _clean_stop("everything was stopped"):
        results = run_trial(chosen, nodes, folder, typer.echo)
    typer.echo(f"Results in {results}")
