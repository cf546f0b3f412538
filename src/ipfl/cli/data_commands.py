"""`ipfl data`: download data sets, see where they are, and who has what. Imports only typer at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import (
    ClientCount,
    ConfigFile,
    DataDir,
    DatasetName,
    Seed,
    Sets,
    load_config,
    stdout_console,
)
from ipfl.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    help="Download data sets, list where they are, and show which client has which data.",
)


@app.command(epilog="For example:\n\nipfl data fetch cifar10")
def fetch(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Download the original of a data set into the cache, and check it.

    NAME is one of `ipfl datasets`.
    """
    from ipfl.data import fetch_dataset

    typer.echo(fetch_dataset(name) or f"{name} is bundled: nothing to download")


@app.command("list")
def list_sources(data_dir: DataDir = None) -> None:
    """Show where each data set is, where it comes from, under which licence."""
    from ipfl.report.result_tables import dataset_sources

    for line in dataset_sources(data_dir):
        typer.echo(line)


@app.command(
    epilog="For example:\n\nipfl data describe my.toml\n\n"
    "ipfl data describe --set task.path=visits.csv --set task.client=hospital --set task.target=outcome"
)
def describe(
    config: ConfigFile = None,
    clients: ClientCount = None,
    dataset: DatasetName = None,
    sets: Sets = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", help="Where the picture goes; default: clients.png."),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Only the table.")] = False,
    seed: Seed = None,
    data_dir: DataDir = None,
) -> None:
    """Show which client has which data: the points of every client, and a picture of its labels.

    CONFIG.toml holds the settings; without it, those of the default run. Nothing is trained.
    """
    file = plot or Path("clients.png")
    if not no_plot and (file.suffix.lower() != ".png" or not file.resolve().parent.is_dir()):
        raise InputError(f"--plot {file}: expected a file .png in a folder that exists")
    settings = load_config(config, sets, data_dir, seed=seed, clients=clients, dataset=dataset)
    from ipfl.data import federate
    from ipfl.data.federated import notes
    from ipfl.report.data_tables import clients_table, count_labels, plot_clients

    data = federate(settings.task, settings.seed)
    counted = count_labels(data)
    console = stdout_console()
    console.print(clients_table(data, counted))
    for note in notes(data):
        console.print(note, markup=False, soft_wrap=True)
    if not no_plot:
        plot_clients(data, counted, file)
        console.print(f"Picture in {file}", markup=False, soft_wrap=True)
