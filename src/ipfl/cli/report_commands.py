"""`ipfl plot` and `ipfl report`: figures of runs, and a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Folders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Folders of runs or comparisons, shown together.")
]


def plot(
    runs: Folders,
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
    """Draw figures of runs or comparisons.

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
