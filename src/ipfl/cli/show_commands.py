"""Commands that show what is there: runs (`list`, `show`), methods, data sets and partitions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import Json, complete_method, print_json, stdout_console

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def list_runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to look; also in folders below it.")
    ] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder, those of comparisons included."""
    from ipfl.results.overview import find_runs

    entries = find_runs(folder)
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    if not entries:
        typer.echo(f"no runs in {folder}")
        return
    from ipfl.report.run_tables import runs_table

    console = stdout_console()
    console.print(runs_table(entries, folder, console.width))


def show(run: RunPath, as_json: Json = False) -> None:
    """Show a finished run: its figures, and a row for each client."""
    from ipfl.results.finished import load_figures
    from ipfl.results.frames import client_rows
    from ipfl.results.overview import refuse_comparison

    refuse_comparison(run)
    result = load_figures(run)
    rows = client_rows(result)
    names = result.client_names
    if as_json:
        clients = [{"name": names.get(row["client"]), **row} for row in rows]
        print_json({"folder": str(run), "summary": result.summary, "clients": clients})
        return
    from ipfl.report.result_tables import run_table
    from ipfl.report.run_tables import client_table

    console = stdout_console()
    console.print(run_table(result.summary))
    console.print(client_table(rows, names))


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=complete_method)] = None,
) -> None:
    """List the methods; with NAME, the hyper-parameters of that one."""
    from ipfl.report.result_tables import method_table, methods_table

    console = stdout_console()
    if name is None:
        console.print(methods_table())
        return
    from ipfl.methods import method_class
    from ipfl.report.config_text import hyperparameters

    console.print(f"{name}: {method_class(name).summary}", markup=False)
    fields = hyperparameters(name)
    if fields:
        console.print(method_table(fields))
        advice = f"Set one with: ipfl run --method {name} --set method.{fields[0].name}=…"
    else:
        advice = "It has no hyper-parameters of its own; those of training are in [train]."
    console.print(advice, markup=False)


def datasets() -> None:
    """List the data sets: where each is here, where it comes from, under which licence.

    They are looked for in the folder that IPFL_DATA names, and in the cache of `ipfl data fetch`.
    """
    from ipfl.report.result_tables import dataset_lines

    for line in dataset_lines():
        typer.echo(line)


def partitions() -> None:
    """List hidden distributions and partitions over clients."""
    from ipfl.data import DISTRIBUTIONS, PARTITIONS
    from ipfl.report.result_tables import meanings_table

    console = stdout_console()
    console.print(meanings_table("task.distributions", DISTRIBUTIONS))
    console.print(meanings_table("task.partition", PARTITIONS))
