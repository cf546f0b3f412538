"""All figures by name: what each shows, when there is something to show, and how they are saved.

To add one: a function that draws it on an empty figure, and its entry in `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipfl.errors import InputError, unknown
from ipfl.figure_style import figure_settings, new_figure, save_figure
from ipfl.report import accuracy_figures as accuracy
from ipfl.report import market_figures as market
from ipfl.report.run_set import RunSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be drawn of runs."""

    title: str
    """The content in words; may hold `{reference}`."""
    reading: str
    """A sentence that helps to read it."""
    draw: Callable[[Figure, RunSet], None]
    has_data: Callable[[RunSet], bool]


FIGURES: dict[str, FigureKind] = {
    "convergence": FigureKind(
        "Personalized accuracy",
        "Each client's own model on its own test data, mean over the clients.",
        accuracy.draw_accuracy_by_round,
        lambda runs: any(accuracy.accuracy_curve(seeds).rounds for seeds in runs.runs.values()),
    ),
    "pma": FigureKind(
        "What clients gain over {reference}",
        "The further right a line, the better; clients in the grey gain nothing and would rather opt out. "
        "A number beside a name is the median.",
        accuracy.draw_pma,
        lambda runs: any(runs.pma(name) for name in runs.runs),
    ),
    "accuracy": FigureKind(
        "How accuracy is spread over the clients",
        "The further right a line, the better. A number beside a name is the median.",
        accuracy.draw_accuracy,
        lambda runs: any(run.last for seeds in runs.runs.values() for run in seeds.values()),
    ),
    "ablation": FigureKind(
        "Methods side by side",
        "Bars are means over the seeds, dots the seeds.",
        accuracy.draw_ablation,
        lambda runs: sum(any(run.last for run in seeds.values()) for seeds in runs.runs.values()) > 1,
    ),
    "clusters": FigureKind(
        "Cluster models on the hidden distributions",
        "Each cluster should be good at one distribution. Clusters are in the order of the distributions "
        "that they fit best; means over the seeds.",
        accuracy.draw_clusters,
        lambda runs: any(accuracy.cluster_accuracy(seeds) is not None for seeds in runs.runs.values()),
    ),
    "preferences": FigureKind(
        "Which cluster each client wants most",
        "A client that found its cluster keeps its colour. First seed.",
        market.draw_preferences,
        lambda runs: any(market.has_bids(seeds) for seeds in runs.runs.values()),
    ),
    "tokens": FigureKind(
        "Tokens of every client",
        "A grey line is a client. First seed.",
        market.draw_tokens,
        lambda runs: any(market.has_tokens(seeds) for seeds in runs.runs.values()),
    ),
    "contributions": FigureKind(
        "Contribution and reward",
        "A point is a client. First seed.",
        market.draw_contributions,
        lambda runs: any(market.has_tokens(seeds) for seeds in runs.runs.values()),
    ),
}
"""Name → figure."""


def make_figure(name: str, runs: RunSet, *, has_title: bool = True) -> Figure:
    """Draws one figure of runs, with its title or without."""
    kind = FIGURES[name]
    with figure_settings():
        figure = new_figure()
        kind.draw(figure, runs)
        title = kind.title.format(reference=runs.reference)
        if has_title:
            figure.suptitle(f"{title}: {runs.task}", x=0.01, ha="left", fontsize=10.5, fontweight="bold")
    return figure


def available_figures(runs: RunSet) -> list[str]:
    """Names of the figures for which these runs have data."""
    return [name for name, kind in FIGURES.items() if kind.has_data(runs)]


def check_figures(names: Sequence[str], runs: RunSet) -> None:
    """Refuses names that do not exist, and figures for which the runs have no data."""
    for name in names:
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
        if not FIGURES[name].has_data(runs):
            known = ", ".join(available_figures(runs)) or "none"
            raise InputError(f"these runs have no data for the figure {name!r} (there is: {known})")


def save_figures(names: Sequence[str], runs: RunSet, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws figures and writes `NAME.FORMAT` for each; returns the files."""
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            figure = make_figure(name, runs)
            for kind in formats:
                files.append(folder / f"{name}.{kind}")
                save_figure(figure, files[-1])
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return files
