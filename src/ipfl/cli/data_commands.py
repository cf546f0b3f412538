"""`ipfl data`: download data sets, and see who has what. Imports only typer at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import (
    ClientCount,
    ConfigFile,
    DatasetName,
    Seed,
    Sets,
    load_config,
    stdout_console,
)
from ipfl.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    help="Download data sets, and show which client has which data.",
)


@app.command(epilog="For example:\n\nipfl data fetch cifar10")
def fetch(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Download the original of a data set into the cache, and check it.

    NAME is one of `ipfl datasets`.
    """
    from ipfl.data import fetch_dataset

    typer.echo(fetch_dataset(name) or f"{name} is bundled: nothing to download")


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
        typer.Option("--plot", metavar="FILE.png", help="Also draw a picture of every client's labels."),
    ] = None,
    seed: Seed = None,
) -> None:
    """Show which client has which data: a row for each, or a picture.

    CONFIG.toml holds the settings; without it, those of the default run. Nothing is trained.
    """
    if plot is not None and (plot.suffix.lower() != ".png" or not plot.resolve().parent.is_dir()):
        raise InputError(f"--plot {plot}: expected a file .png in a folder that exists")
    settings = load_config(config, sets, seed=seed, clients=clients, dataset=dataset)
    from ipfl.data import federate
    from ipfl.report.data_tables import clients_table, count_labels, plot_clients

    data = federate(settings.task, settings.seed)
    counted = count_labels(data)
    console = stdout_console()
    console.print(clients_table(data, counted))
    for note in data.notes:
        console.print(note, markup=False, soft_wrap=True)
    if plot is not None:
        plot_clients(data, counted, plot)
        console.print(f"Picture in {plot}", markup=False, soft_wrap=True)
