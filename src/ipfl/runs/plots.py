"""Plots of a comparison as PNG and PDF: accuracy by round, and how PMA is spread over the clients.

To add one: a function that draws it, and its line in `PLOTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ipfl.runs.comparison import MethodRuns

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers too; without its yellow, too pale on white."""
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FORMATS = ("png", "pdf")


class LineStyle(NamedTuple):
    """How the line of one method looks, the same in every plot."""

    colour: str
    line: str
    marker: str


class Plot(NamedTuple):
    """One plot of a comparison."""

    title: str
    """May hold `{reference}`."""
    draw: Callable[[Axes, Mapping[str, MethodRuns], Mapping[str, LineStyle]], None]
    """Draws methods by name, each in its style."""
    has_data: Callable[[MethodRuns], bool]
    """Whether a method has anything to draw."""


def plot_files(folder: Path) -> list[Path]:
    """All files that `save_plots` may write."""
    return [folder / f"{name}.{kind}" for name in PLOTS for kind in FORMATS]


def save_plots(entries: Mapping[str, MethodRuns], reference: str, folder: Path) -> list[Path]:
    """Writes the plots for which there is data; returns the files.

    Args:
        entries: All runs, by method.
        reference: The one that PMA is measured against.
        folder: Where the files go.
    """
    styles = dict(zip(entries, _line_styles(), strict=False))
    finished = {name: entry for name, entry in entries.items() if entry.results}
    files: list[Path] = []
    for stem, plot in PLOTS.items():
        drawn = {name: entry for name, entry in finished.items() if plot.has_data(entry)}
        if drawn:
            with _figure(folder / stem, files) as axes:
                plot.draw(axes, drawn, styles)
                title = plot.title.format(reference=reference)
                axes.set_title(f"{title}: {_task_text(finished)}", loc="left")
    return files


def curve(entry: MethodRuns) -> tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Rounds (counted from 1) that every seed evaluated, and mean accuracies (seed, round) there."""
    runs = list(entry.results.values())
    shared = sorted(set.intersection(*(set(result.evaluations) for result in runs)))
    means = [[np.mean(list(run.evaluations[r].personalized.values())) for r in shared] for run in runs]
    return [r + 1 for r in shared], np.array(means).reshape(len(runs), len(shared))


def draw_convergence(axes: Axes, entries: Mapping[str, MethodRuns], styles: Mapping[str, LineStyle]) -> None:
    """Mean accuracy over clients by round; a band shows the spread over seeds."""
    bands = False
    for name, entry in entries.items():
        rounds, means = curve(entry)
        middle, spread = 100 * means.mean(axis=0), 100 * means.std(axis=0)
        style = styles[name]
        axes.plot(
            rounds, middle, style.line, color=style.colour, marker=style.marker, markersize=4, label=name
        )
        if len(means) > 1:
            bands = True
            axes.fill_between(
                rounds, middle - spread, middle + spread, color=style.colour, alpha=0.15, linewidth=0
            )
    axes.set_xlabel("round" + (" (bands: standard deviation over seeds)" if bands else ""))
    axes.set_ylabel("accuracy, mean over clients (%)")
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(left=0)


def draw_pma(axes: Axes, entries: Mapping[str, MethodRuns], styles: Mapping[str, LineStyle]) -> None:
    """Share of clients whose PMA is at most x. Those in the grey would rather opt out."""
    gains = {
        name: np.sort([100 * value for clients in entry.pma.values() for value in clients.values()])
        for name, entry in entries.items()
    }
    lowest, highest = min(v[0] for v in gains.values()), max(v[-1] for v in gains.values())
    margin = 0.05 * max(highest - lowest, 1)
    left, right = min(lowest, 0) - margin, max(highest, 0) + margin
    for name, values in gains.items():
        shares = 100 * np.arange(len(values) + 1) / len(values)
        style = styles[name]
        axes.step(
            [left, *values, right], [*shares, 100], style.line, where="post", color=style.colour, label=name
        )
    axes.axvspan(left, 0, color="#666666", alpha=0.1, linewidth=0)
    is_narrow = -left < 0.2 * (right - left)  # no room for the label in the grey
    label, side = (" ← PMA ≤ 0: opt out", "left") if is_narrow else ("PMA ≤ 0: opt out ", "right")
    axes.text(0, 101, label, ha=side, va="bottom", color="#444444", fontsize=8.5)
    axes.axvline(0, color="#666666", linewidth=1)
    axes.set_xlim(left, right)
    axes.set_ylim(0, 107)
    axes.set_xlabel("PMA: a client's accuracy minus that of the reference (percentage points)")
    axes.set_ylabel("clients with at most this PMA (%)")


PLOTS = {
    "convergence": Plot("Personalized accuracy", draw_convergence, lambda entry: bool(entry.results)),
    "pma": Plot("What clients gain over {reference}", draw_pma, lambda entry: any(entry.pma.values())),
}
"""Name of its files → the plot."""


def _line_styles() -> Iterator[LineStyle]:
    """Endless styles; when all colours are used, the line changes."""
    return cycle(
        [LineStyle(c, line, m) for line in LINE_STYLES for c, m in zip(COLOURS, MARKERS, strict=True)]
    )


def _task_text(entries: Mapping[str, MethodRuns]) -> str:
    """What all of them ran on."""
    results = next(iter(entries.values())).results
    summary = next(iter(results.values())).summary
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    return f"{summary['dataset']} {summary['partition']}, {summary['clients']} clients{seeds}"


@contextmanager
def _figure(stem: Path, files: list[Path]) -> Iterator[Axes]:
    """A figure to draw on; saved in every format at the end, its files added to the list."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    settings: dict[Any, Any] = {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e5e5e5",
        "axes.axisbelow": True,
        "lines.linewidth": 1.8,
        "legend.frameon": False,
    }
    with mpl.rc_context(settings):
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        yield axes
        figure.legend(loc="outside right upper")
        for kind in FORMATS:
            file = stem.with_suffix(f".{kind}")
            # Without its date a PDF depends on nothing but the numbers.
            figure.savefig(file, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
            files.append(file)
        plt.close(figure)
