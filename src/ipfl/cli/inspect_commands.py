"""Commands that look at runs which are there already: `ipfl list`, `ipfl show`, `ipfl diff`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import Json, print_json, stdout_console

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
