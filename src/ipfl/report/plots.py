"""Plots of a comparison as PNG and PDF: accuracy by round, and how PMA is spread over the clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipfl.methods import REFERENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ipfl.runs.comparison import Comparison, Entry

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers too; without its yellow, too pale on white."""
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FORMATS = ("png", "pdf")


class Look(NamedTuple):
    """How one method looks, in every plot alike."""

    colour: str
    line: str
    marker: str


def save_plots(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes the plots for which there is data; returns the files."""
    entries = {name: entry for name, entry in comparison.entries.items() if entry.results}
    gains = {name: entry for name, entry in entries.items() if any(entry.pma.values())}
    looks = dict(zip(comparison.entries, _looks(), strict=False))
    files: list[Path] = []
    if entries:
        with _figure(folder / "convergence", files) as axes:
            draw_convergence(axes, entries, looks)
            axes.set_title(f"Personalized accuracy: {_about(entries)}", loc="left")
    if gains:
        with _figure(folder / "pma", files) as axes:
            draw_pma(axes, gains, looks)
            axes.set_title(f"What clients gain over {REFERENCE}: {_about(entries)}", loc="left")
    return files


def curve(entry: Entry) -> tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Rounds (counted from 1) that every seed evaluated, and mean accuracies (seed, round) there."""
    runs = list(entry.results.values())
    shared = sorted(set.intersection(*(set(result.evaluations) for result in runs)))
    means = [[np.mean(list(run.evaluations[r].personalized.values())) for r in shared] for run in runs]
    return [r + 1 for r in shared], np.array(means).reshape(len(runs), len(shared))


def draw_convergence(axes: Axes, entries: Mapping[str, Entry], looks: Mapping[str, Look]) -> None:
    """Mean accuracy over clients by round; a band shows the spread over seeds."""
    bands = False
    for name, entry in entries.items():
        rounds, means = curve(entry)
        middle, spread = 100 * means.mean(axis=0), 100 * means.std(axis=0)
        look = looks[name]
        axes.plot(rounds, middle, look.line, color=look.colour, marker=look.marker, markersize=4, label=name)
        if len(means) > 1:
            bands = True
            axes.fill_between(
                rounds, middle - spread, middle + spread, color=look.colour, alpha=0.15, linewidth=0
            )
    axes.set_xlabel("round" + (" (bands: standard deviation over seeds)" if bands else ""))
    axes.set_ylabel("accuracy, mean over clients (%)")
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(left=0)


def draw_pma(axes: Axes, entries: Mapping[str, Entry], looks: Mapping[str, Look]) -> None:
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
        look = looks[name]
        axes.step(
            [left, *values, right], [*shares, 100], look.line, where="post", color=look.colour, label=name
        )
    axes.axvspan(left, 0, color="#666666", alpha=0.1, linewidth=0)
    axes.text(0, 101, "PMA ≤ 0: opt out ", ha="right", va="bottom", color="#444444", fontsize=8.5)
    axes.axvline(0, color="#666666", linewidth=1)
    axes.set_xlim(left, right)
    axes.set_ylim(0, 107)
    axes.set_xlabel(f"PMA: a client's accuracy minus that of {REFERENCE} (percentage points)")
    axes.set_ylabel("clients with at most this PMA (%)")


def _looks() -> Iterator[Look]:
    """Endless looks; when the colours are through, the line style changes."""
    return cycle([Look(c, line, m) for line in LINES for c, m in zip(COLOURS, MARKERS, strict=True)])


def _about(entries: Mapping[str, Entry]) -> str:
    results = next(iter(entries.values())).results
    summary = next(iter(results.values())).summary
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    return f"{summary['dataset']} {summary['partition']}, {summary['clients']} clients{seeds}"


@contextmanager
def _figure(stem: Path, files: list[Path]) -> Iterator[Axes]:
    """A figure to draw on; saved in every format on leaving."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    look: dict[Any, Any] = {
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
    with mpl.rc_context(look):
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        yield axes
        figure.legend(loc="outside right upper")
        for kind in FORMATS:
            file = stem.with_suffix(f".{kind}")
            # Without its date a PDF depends on nothing but the numbers.
            figure.savefig(file, dpi=150, metadata={"CreationDate": None} if kind == "pdf" else None)
            files.append(file)
        plt.close(figure)
