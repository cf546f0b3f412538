"""Commands that show what is there: runs (`list`, `show`, `diff`), methods, data sets and partitions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import DataDir, Json, complete_method, print_json, stdout_console

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


def diff(
    one: Annotated[Path, typer.Argument(metavar="A", help="Folder of a finished run.")],
    other: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    as_json: Json = False,
) -> None:
    """Show what differs between two finished runs: their settings and their results."""
    from ipfl.results.finished import load_figures
    from ipfl.results.overview import changed_settings, client_gains, refuse_comparison, result_figures

    for folder in (one, other):
        refuse_comparison(folder)
    first, second = load_figures(one), load_figures(other)
    changed, figures = changed_settings(first, second), result_figures(first, second)
    gains = client_gains(first, second)
    if as_json:
        print_json({"A": str(one), "B": str(other), "config": changed, "results": figures, "gains": gains})
        return
    from ipfl.report.run_tables import figures_table, gains_note, settings_table

    console = stdout_console()
    console.print(f"A: {one}\nB: {other}", markup=False, soft_wrap=True)
    console.print(settings_table(changed) if changed else "\nThe same settings.")
    console.print(figures_table(figures))
    if note := gains_note(gains):
        console.print(note, markup=False)


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


def datasets(data_dir: DataDir = None) -> None:
    """List the data sets."""
    from ipfl.report.result_tables import datasets_table

    stdout_console().print(datasets_table(data_dir))


def partitions() -> None:
    """List hidden distributions and partitions over clients."""
    from ipfl.data import DISTRIBUTIONS, PARTITIONS
    from ipfl.report.result_tables import meanings_table

    console = stdout_console()
    console.print(meanings_table("task.distributions", DISTRIBUTIONS))
    console.print(meanings_table("task.partition", PARTITIONS))
