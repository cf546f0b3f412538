"""`ipfl plot`, `ipfl report` and `ipfl theory`: figures of runs, a page about them, the paper's theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ipfl.cli.options import stdout_console


def plot(
    runs: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run or a comparison.")],
    figures: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            help="Only this figure; repeatable. Default: all that the runs have data for.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the files, outside of the runs.")
    ] = Path("figures"),
    file_format: Annotated[
        Literal["png", "pdf", "svg"], typer.Option("--format", help="Format of the files.")
    ] = "png",
) -> None:
    """Draw figures of a run or a comparison.

    Names: convergence, pma, accuracy, ablation, clusters, preferences, tokens, contributions.
    """
    from ipfl.report.figure_list import available_figures, check_figures, save_figures
    from ipfl.report.run_set import check_outside_runs, read_run_set

    check_outside_runs(out)
    shown = read_run_set(runs)
    names = list(dict.fromkeys(figures)) if figures else available_figures(shown)
    check_figures(names, shown)
    for file in save_figures(names, shown, out, [file_format]):
        typer.echo(file)


def report(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="Folder of a run, of a comparison, or of several.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="The page, outside of the runs.")
    ] = Path("report.html"),
) -> None:
    """Write a page about runs or a comparison: one HTML file that needs no network.

    It holds figures (hover over points and bars for values), tables, everyone's tokens, and the config.
    """
    from ipfl.report.run_page import write_page
    from ipfl.report.run_set import check_outside_runs

    check_outside_runs(out)
    typer.echo(write_page(results, out))


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
