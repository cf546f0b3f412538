"""`ipfl theory`: the paper's theory as figures and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import stdout_console


def theory(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One study, see --list; default: all.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for NAME.png and theory.json.")
    ] = Path("theory"),
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, help="Seed of the simulations: the same seed gives the same numbers."),
    ] = 0,
    trials: Annotated[
        int, typer.Option("--trials", min=10, max=10_000_000, help="Simulated federations for each point.")
    ] = 20_000,
    list_only: Annotated[bool, typer.Option("--list", help="List the studies, and compute nothing.")] = False,
) -> None:
    """Check the paper's theory: formulas beside simulations.

    Writes a figure for each study, and all numbers with their 95 % bands to theory.json.
    """
    from ipfl.theory.studies import STUDIES, write_studies

    if list_only:
        from ipfl.report.result_tables import plain_table

        table = plain_table("study", "what it shows", "in the paper")
        for key, study in STUDIES.items():
            table.add_row(key, study.summary, study.place)
        stdout_console().print(table)
        return
    for file in write_studies([name] if name else list(STUDIES), out, seed, trials):
        typer.echo(file)
