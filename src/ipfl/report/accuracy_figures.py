"""Figures of accuracy: by round, over clients, of methods side by side, of clusters on distributions.

Up to `MAX_OVERLAID` methods are lines in one panel. Beyond that every method has a panel of its own, best
first, with all others behind it in pale grey: fourteen lines in one panel cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipfl.figure_style import LINE_STYLES, PALE, LineStyle, add_values, label_line_ends, line_style
from ipfl.play.metrics import Evaluation
from ipfl.report.run_set import RunSet, Seeds
from ipfl.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_OVERLAID = 6
"""Methods that can be told apart in one panel."""
PANELS_PER_ROW = 4
"""Panels in a row."""
PANEL_HEIGHT = 1.55
"""Inches."""
MAX_CELLS = 12
"""Rows or columns of a heat map that leave room for numbers."""


class Curve(NamedTuple):
    """Mean accuracy over clients by round, in percent."""

    rounds: list[int]
    middle: NDArray[np.float64]
    spread: NDArray[np.float64] | None
    """Standard deviation over seeds, or of a single run over clients."""


def accuracy_curve(runs: Seeds) -> Curve:
    """The curve of a method, of the rounds that every seed evaluated."""
    shared = sorted(set.intersection(*(set(run.evaluations) for run in runs.values())))
    means = 100 * np.array([[_mean(run.evaluations[r]) for r in shared] for run in runs.values()])
    return Curve(shared, means.mean(axis=0), means.std(axis=0, ddof=1) if len(runs) > 1 else None)


def _mean(evaluation: Evaluation) -> float:
    return float(np.mean(list(evaluation.personalized.values())))


def client_curve(run: Result) -> Curve:
    """The curve of a single run."""
    clients = [100 * np.array(list(one.personalized.values())) for one in run.evaluations.values()]
    middle, spread = (np.array([measure(values) for values in clients]) for measure in (np.mean, np.std))
    return Curve(list(run.evaluations), middle, spread)


def draw_accuracy_by_round(figure: Figure, runs: RunSet) -> None:
    """Mean accuracy over clients by round, with a band for the spread."""
    is_single = sum(map(len, runs.runs.values())) == 1
    curves = {
        name: client_curve(runs.first) if is_single else accuracy_curve(seeds)
        for name, seeds in runs.runs.items()
    }
    curves = {name: curve for name, curve in curves.items() if curve.rounds}
    styles, is_one_panel = line_styles(runs), len(curves) <= MAX_OVERLAID

    def draw(axes: Axes, name: str, colour: str | None) -> None:
        style = styles[name] if is_one_panel else styles[name]._replace(line="-")
        _draw_curve(axes, name, curves[name], style, colour)
        axes.locator_params(axis="x", integer=True, nbins=5)

    over = "clients" if is_single else "seeds"
    has_bands = any(curve.spread is not None for curve in curves.values())
    below = "round" + (f" (bands: standard deviation over {over})" if has_bands else "")
    beside = "accuracy, mean over clients (%)"
    ranked = sorted(curves, key=lambda name: -curves[name].middle[-1])
    titles = {name: f"{name} {curves[name].middle[-1]:.1f}" for name in ranked}
    axes = draw_methods(figure, titles, draw, below, beside)
    if axes is not None:
        axes.margins(x=0.01)
        ends = [(curve.middle[-1], titles[name], styles[name].colour) for name, curve in curves.items()]
        label_line_ends(axes, ends)


def line_styles(runs: RunSet) -> dict[str, LineStyle]:
    """The look of each method's line, the same in every figure of these runs."""
    return {name: line_style(number) for number, name in enumerate(runs.runs)}


def _draw_curve(axes: Axes, name: str, curve: Curve, style: LineStyle, colour: str | None) -> None:
    rounds, middle, spread = curve
    if colour is not None:
        axes.plot(rounds, middle, "-", color=colour, linewidth=0.8, zorder=1)
        return
    size = 3.5 if len(rounds) <= 30 else 0
    (line,) = axes.plot(rounds, middle, style.line, color=style.colour, marker=style.marker, markersize=size)
    texts = [f"{name}, round {r}: {value:.1f} %" for r, value in zip(rounds, middle, strict=True)]
    add_values(line, texts if size else texts[-1:])
    if spread is not None:
        axes.fill_between(
            rounds, middle - spread, middle + spread, color=style.colour, alpha=0.15, linewidth=0
        )


def draw_methods(
    figure: Figure,
    titles: Mapping[str, str],
    draw: Callable[[Axes, str, str | None], None],
    below: str,
    beside: str,
) -> Axes | None:
    """All methods in one panel, which is returned; or many, each in its own with all others behind it.

    Args:
        figure: Where to; its height is set if there are many.
        titles: Of the panels by name, in their order.
        draw: Draws one name, in a colour of its own (None) or in the given one.
        below: What the horizontal axis is.
        beside: What the vertical axis is.
    """
    if len(titles) <= MAX_OVERLAID:
        axes = figure.subplots()
        for name in titles:
            draw(axes, name, None)
        axes.set(xlabel=below, ylabel=beside)
        return axes
    rows = -(-len(titles) // PANELS_PER_ROW)
    figure.set_figheight(0.7 + rows * PANEL_HEIGHT)
    panels = list(figure.subplots(rows, PANELS_PER_ROW, sharex=True, sharey=True, squeeze=False).flat)
    for axes, name in zip(panels, titles, strict=False):
        for other in titles:
            if other != name:
                draw(axes, other, PALE)
        draw(axes, name, None)
        axes.set_title(titles[name], fontsize=8.5, fontweight="bold")
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    # The last panel of every column is not always in the last row.
    for number, axes in enumerate(panels):
        if number + PANELS_PER_ROW >= len(titles) and number < len(titles):
            axes.xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel(below, fontsize=9.5)
    figure.supylabel(beside, fontsize=9.5)
    return None


def draw_pma(figure: Figure, runs: RunSet) -> None:
    """Share of clients whose PMA is at most x. Those in the grey gain nothing: they would rather opt out."""
    gains = {
        name: [100 * value for clients in runs.pma(name).values() for value in clients.values()]
        for name in runs.runs
        if runs.pma(name)
    }
    label = f"PMA: accuracy minus that of {runs.reference} (percentage points)"
    _draw_distributions(
        figure, gains, line_styles(runs), label, "clients with at most this PMA (%)", "pp", opt_outs=True
    )


def draw_accuracy(figure: Figure, runs: RunSet) -> None:
    """Share of clients whose personalized accuracy is at most x."""
    values = {
        name: [100 * value for run in seeds.values() if run.last for value in run.last.personalized.values()]
        for name, seeds in runs.runs.items()
    }
    values = {name: clients for name, clients in values.items() if clients}
    label = "accuracy of the client's own model (%)"
    _draw_distributions(
        figure, values, line_styles(runs), label, "clients with at most this accuracy (%)", "%"
    )


def _draw_distributions(
    figure: Figure,
    values: Mapping[str, list[float]],
    styles: Mapping[str, LineStyle],
    below: str,
    beside: str,
    unit: str,
    opt_outs: bool = False,
) -> None:
    """Cumulative distributions over clients; the lower a line, the better."""
    lowest, highest = min(map(min, values.values())), max(map(max, values.values()))
    if opt_outs:
        lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    margin = 0.05 * max(highest - lowest, 1.0)
    left, right = lowest - margin, highest + margin

    def draw(axes: Axes, name: str, colour: str | None) -> None:
        ordered, style = np.sort(values[name]), styles[name]
        shares = 100 * np.arange(len(ordered) + 1) / len(ordered)
        is_alone = colour is not None or len(values) > MAX_OVERLAID
        # Without marks, dashes must tell lines apart where colours are not seen.
        dashes = LINE_STYLES[list(styles).index(name) % len(LINE_STYLES)]
        line, width = "-" if is_alone else dashes, None if colour is None else 0.8
        (drawn,) = axes.step(
            [left, *ordered, right], [*shares, 100], line, where="post", color=colour or style.colour,
            linewidth=width, label=name,
        )  # fmt: skip
        if colour is None:
            middle = f"{name}: median {np.median(ordered):.1f} {unit}"
            add_values(
                drawn,
                [f"{middle}, {100 * np.mean(ordered <= 0):.0f} % at 0 or below" if opt_outs else middle],
            )
            if opt_outs:
                _mark_opt_outs(axes, left)
        axes.set_xlim(left, right)
        axes.set_ylim(0, 102)

    ranked = sorted(values, key=lambda name: -float(np.median(values[name])))
    titles = {name: _distribution_title(name, values[name], opt_outs) for name in ranked}
    more = "" if len(values) <= MAX_OVERLAID else "; beside a name: the median"
    if draw_methods(figure, titles, draw, below + more, beside) is not None and len(values) > 1:
        figure.legend(loc="outside right center")


def _distribution_title(name: str, values: list[float], opt_outs: bool) -> str:
    """Name and median; of gains with a sign, whose minus is not the hyphen of a name."""
    median = float(np.median(values))
    return f"{name} " + (f"{median:+.1f}".replace("-", "−") if opt_outs else f"{median:.1f}")


def _mark_opt_outs(axes: Axes, left: float) -> None:
    """The grey where clients gain nothing; once in a panel."""
    if not axes.patches:
        axes.axvspan(left, 0, color="#666666", alpha=0.1, linewidth=0)
        axes.axvline(0, color="#666666", linewidth=0.8)


def draw_ablation(figure: Figure, runs: RunSet) -> None:
    """Methods as bars: mean accuracy, and the share of clients that gain; dots are seeds."""
    figures = {
        "accuracy, mean over clients (%)": {
            name: [100 * run.summary["personalized_accuracy"]["mean"] for run in seeds.values() if run.last]
            for name, seeds in runs.runs.items()
        },
        f"clients that gain over {runs.reference} (%)": {
            name: [100 * float(np.mean([v > 0 for v in gains.values()])) for gains in runs.pma(name).values()]
            for name in runs.runs
        },
    }
    shown = {label: values for label, values in figures.items() if any(values.values())}
    first = next(iter(shown.values()))
    ranked = sorted((name for name in first if first[name]), key=lambda name: float(np.mean(first[name])))
    figure.set_figheight(1.0 + 0.27 * len(ranked))
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (label, values) in zip(panels, shown.items(), strict=True):
        for place, seeds in [(place, values[name]) for place, name in enumerate(ranked) if values[name]]:
            mean = float(np.mean(seeds))
            axes.barh(place, mean, color=line_style(0).colour, alpha=0.75, height=0.7)
            if len(seeds) > 1:
                axes.scatter(seeds, [place] * len(seeds), s=9, color="#000000", zorder=3, linewidths=0)
            axes.text(max([mean, *seeds]) + 1.5, place, f"{mean:.1f}", va="center", fontsize=8)
        axes.set_xlabel(label)
        axes.set_xlim(0, 112)
        axes.set_xticks(range(0, 101, 20))
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(ranked)), ranked)


def cluster_accuracy(seeds: Seeds) -> NDArray[np.float64] | None:
    """[distribution][cluster] in percent, the mean over seeds; clusters in the order of the distributions.

    Cluster numbers mean nothing and differ between seeds: every seed's clusters are put in the order
    that has most accuracy on the diagonal (Hungarian method). Seeds with another number of clusters than
    the first are left out.
    """
    from scipy.optimize import linear_sum_assignment

    found: list[NDArray[np.float64]] = []
    for run in seeds.values():
        if not run.summary["cluster_accuracy"] or not run.summary["clusters"]:
            continue
        table = 100 * np.array(run.summary["cluster_accuracy"], dtype=np.float64)
        _, matched = linear_sum_assignment(table, maximize=True)
        rest = [k for k in range(table.shape[1]) if k not in set(matched)]
        found.append(table[:, [*matched, *rest]])
    same = [table for table in found if table.shape == found[0].shape]
    return np.mean(same, axis=0) if same else None


def draw_clusters(figure: Figure, runs: RunSet) -> None:
    """Accuracy of every cluster model on every distribution, as a heat map with its numbers."""
    tables = {name: cluster_accuracy(seeds) for name, seeds in runs.runs.items()}
    shown = {name: table for name, table in tables.items() if table is not None}
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure.set_figheight(0.5 + rows * (2.6 if columns < 4 else 2.0))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    low, high = min(t.min() for t in shown.values()), max(t.max() for t in shown.values())
    # All panels have room for as many clusters, so that their cells are of one size and stand in rows.
    most = max(table.shape[1] for table in shown.values())
    for place, (axes, (name, table)) in enumerate(zip(panels, shown.items(), strict=False)):
        is_square = max(*table.shape, most) <= 2 * min(table.shape[0], most)
        image = axes.imshow(
            table, cmap="cividis", vmin=low, vmax=high, aspect="equal" if is_square else "auto"
        )
        axes.set_xlim(-0.5, most - 0.5)
        axes.set_title(name)
        axes.grid(visible=False)
        axes.set_xticks(range(table.shape[1]))
        axes.set_yticks(range(table.shape[0]))
        if table.shape[1] == 1 < most:
            axes.set_xticks([0], ["one model"])
        elif place + columns >= len(shown):
            axes.set_xlabel("cluster")
        if place % columns == 0:
            axes.set_ylabel("distribution")
        if max(table.shape) <= MAX_CELLS:
            for (row, column), value in np.ndenumerate(table):
                colour = "white" if value < (low + high) / 2 else "black"
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=9)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    figure.colorbar(image, ax=panels, label="accuracy (%)", shrink=0.9)
