"""`ipfl deploy`: a federation on machines of its own. Only typer is imported up here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipfl.cli.options import Out, Sets, free_folder
from ipfl.cli.outcome import INTERRUPTED, complain

if TYPE_CHECKING:
    from ipfl.deploy.folder import ServerFolder

app = typer.Typer(no_args_is_help=True, help="Run a federation on machines of its own, with Flower.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `ipfl deploy init` wrote.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="Number of nodes.")]
Rounds = Annotated[
    int | None, typer.Option("--rounds", min=1, metavar="R", help="Rounds; default: as the config says.")
]


def _say(line: str) -> None:
    typer.echo(line)


@contextmanager
def _supervised(farewell: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM unwind what is inside, and with it everything that was started."""
    from ipfl.core_signals import exit_on_sigterm

    with exit_on_sigterm():
        try:
            yield
        except KeyboardInterrupt:
            complain(f"interrupted; {farewell}", INTERRUPTED)


def _server_folder(folder: Path) -> ServerFolder:
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.folder import ServerFolder

    found = ServerFolder(folder.resolve())
    found.check()
    return found


@app.command("init", epilog="For example:\n\nipfl deploy init hospital --nodes 3 --host fl.example.org")
def init_folder(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must not be there yet.")],
    nodes: Nodes = 3,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="Name or address of the server, as nodes see it; may be repeated."
        ),
    ] = None,
) -> None:
    """Write a folder to deploy from: certificates, node keys, accounts, settings, scripts, units, a guide."""
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.folder import init

    written = init(folder, nodes=nodes, hosts=hosts or ())
    _say(f"{written.root}: certificates, {nodes} node keys and accounts; README.md says how to go on")


@app.command()
def register(
    folder: Folder,
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="Public key of the node.")],
    client: Annotated[
        int | None,
        typer.Option("--client", metavar="I", min=0, help="Client id; default: the next free."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="For people.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="The client has an account: its key becomes this one.")
    ] = False,
) -> None:
    """Open an account for a node's key, or give an account another key."""
    server = _server_folder(folder)
    from ipfl.deploy.keys import read_public_key
    from ipfl.deploy.server import open_account

    account, told = open_account(server, read_public_key(key).decode(), client, name, replaces=replace)
    when = "the server knows it" if told else "the server learns of it when it starts"
    _say(f"client {account.client}: key {account.fingerprint}; {when}")


@app.command()
def server(folder: Folder) -> None:
    """Start the server, and keep it until Ctrl-C or SIGTERM."""
    found = _server_folder(folder)
    from ipfl.deploy.processes import Processes
    from ipfl.deploy.server import start_server

    with _supervised("the server was stopped"), Processes(found.logs) as processes:
        running = start_server(processes, found)
        _say(f"server: up; its log is {running.log}")
        processes.wait_while_alive()
        processes.check()


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The node's folder, with node.toml and key.")],
) -> None:
    """Start a node, and keep it until Ctrl-C or SIGTERM."""
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.folder import NodeFolder
    from ipfl.deploy.node import serve

    with _supervised("the node was stopped"):
        serve(NodeFolder(folder.resolve()), _say)


@app.command("run", epilog="For example:\n\nipfl deploy run hospital --resume hospital/runs/run-1")
def run_federation(
    folder: Folder,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="What to run; default: run.toml in DIR.")
    ] = None,
    rounds: Rounds = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that was stopped.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, metavar="N", help="Wait for so many nodes; default: all accounts."),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, metavar="S", help="Seconds to wait for them.")
    ] = 120,
    deadline: Annotated[
        float, typer.Option("--deadline", min=1, metavar="S", help="Seconds that a client has for an answer.")
    ] = 300,
) -> None:
    """Run a method over the connected nodes, and show how it goes on. Ctrl-C stops the run."""
    found = _server_folder(folder)
    from ipfl.deploy.register import Registry
    from ipfl.deploy.runs import RunValue, newest, run

    out = (resume or newest(found.runs)).resolve()
    settings: dict[str, RunValue] = {
        "config": str((config or found.config).resolve()),
        "registry": str(found.accounts),
        "out": str(out),
        "resume": resume is not None,
        "rounds": rounds or 0,
        "nodes": nodes or len(Registry.load(found.accounts).accounts),
        "wait": wait,
        "deadline": deadline,
    }
    with _supervised(f"to go on: ipfl deploy run {found.root} --resume {out}"):
        run(found, settings, _say)
    _say(f"Results in {out}")


@app.command("try", epilog="For example:\n\nipfl deploy try --nodes 3 --rounds 2")
def try_out(
    nodes: Nodes = 3,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="What to run; default: a small run.")
    ] = None,
    sets: Sets = None,
    rounds: Rounds = None,
    out: Out = None,
) -> None:
    """Try it all on this machine: server and nodes with TLS and keys, a run over them, everything stopped.

    Every node is a set of processes with a key and data of its own; the data is that of the config's [task].
    """
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.deploy.trial import attempt, settings

    chosen = settings(config, sets or (), nodes, rounds)
    folder = (out or free_folder("deploy-try")).resolve()
    with _supervised("everything was stopped"):
        results = attempt(chosen, nodes, folder, _say)
    _say(f"Results in {results}")
