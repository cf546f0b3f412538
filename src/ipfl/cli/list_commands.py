"""Commands that list methods, data sets and partitions; and `ipfl data fetch`."""

from __future__ import annotations

from typing import Annotated

import typer

from ipfl.cli.options import DataDir, stdout_console


def methods(name: Annotated[str | None, typer.Argument(metavar="NAME")] = None) -> None:
    """List the methods; with NAME, the hyper-parameters of that one."""
    from ipfl.report.tables import method_table, methods_table

    console = stdout_console()
    if name is None:
        console.print(methods_table())
        return
    from ipfl.methods import method_class
    from ipfl.report.settings import hyperparameters

    console.print(f"{name}: {method_class(name).summary}", markup=False)
    fields = hyperparameters(name)
    if fields:
        console.print(method_table(fields))
        advice = f"Set one with: ipfl run --set method.name={name} --set method.{fields[0].name}=…"
    else:
        advice = "It has no hyper-parameters of its own; those of training are in [train]."
    console.print(advice, markup=False)


def datasets(data_dir: DataDir = None) -> None:
    """List the data sets."""
    from ipfl.report.tables import datasets_table

    stdout_console().print(datasets_table(data_dir))


def partitions() -> None:
    """List hidden distributions and partitions over clients."""
    from ipfl.data import DISTRIBUTIONS, PARTITIONS
    from ipfl.report.tables import meanings_table

    console = stdout_console()
    console.print(meanings_table("task.distributions", DISTRIBUTIONS))
    console.print(meanings_table("task.partition", PARTITIONS))


def data_fetch(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Download the original of a data set into the cache, and check it.

    NAME is one of `ipfl datasets`.
    """
    from ipfl.data import fetch

    paths = fetch(name)
    for path in paths:
        typer.echo(path)
    if not paths:
        typer.echo(f"{name} is bundled: nothing to download")


def data_list(data_dir: DataDir = None) -> None:
    """Show where each data set is, where it comes from, under which licence."""
    from ipfl.report.tables import dataset_sources

    for line in dataset_sources(data_dir):
        typer.echo(line)
