"""Section 3 as figures: errors of the three procedures; where a cluster is better than training alone."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ipfl.figure_style import COLOURS, GREY
from ipfl.theory.gaussian_means import PROCEDURES, READINGS, GaussianMeans, Reading, largest_spread
from ipfl.theory.monte_carlo import simulate_means
from ipfl.theory.study import STYLES, Numbers, Study, draw_legend, draw_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES: dict[Reading, str] = {
    "exact": "Clients drawn around their cluster (the model)",
    "printed": "Clients drawn around client 0, one by one (as printed)",
}
"""Of the panels, by how clients are drawn."""
GAPS = [round(0.25 * step, 2) for step in range(9)]
TAUS = [round(0.2 * step, 2) for step in range(9)]


def standard_model(gap: float = 1.0, tau: float = 0.4) -> GaussianMeans:
    """10 + 10 clients with 10 observations each of σ = 3: a client alone has the error 0.9."""
    return GaussianMeans.of_equal_sizes(10, 10, 10, gap=gap, sigma=3.0, tau=tau)


def compute_errors(seed: int, trials: int) -> Numbers:
    """Errors by the distance of the clusters and by the spread inside a cluster."""
    base, series = standard_model(), dict[str, Numbers]()
    for axis, values in (("gap", GAPS), ("tau", TAUS)):
        series[axis] = {"x": values}
        for reading in READINGS:
            drawn = [
                simulate_means(
                    standard_model(**{axis: value}), trials, seed, "errors", axis, number, reading=reading
                )
                for number, value in enumerate(values)
            ]
            points = {name: [one.procedure_error(name) for one in drawn] for name in PROCEDURES}
            series[axis][reading] = points
    return {"fixed": {"tau": base.tau, "gap": base.gap}, "trials": trials, **series}


def draw_errors(figure: Figure, numbers: Numbers) -> None:
    """A row per way of drawing; lines are formulas, points the simulation with 95 % bands."""
    panels = figure.subplots(2, 2, sharey="row")
    labels = {
        "gap": f"distance of the clusters |β₂ − β₁|   (τ = {numbers['fixed']['tau']})",
        "tau": f"spread inside a cluster τ   (|β₂ − β₁| = {numbers['fixed']['gap']})",
    }
    for row, reading, other in zip(panels, READINGS, reversed(READINGS), strict=True):
        for axes, axis in zip(row, ("gap", "tau"), strict=True):
            _draw_error_panel(axes, numbers[axis], reading, other)
            axes.set(xlabel=labels[axis])
        row[0].set(ylabel="mean squared error", title=TITLES[reading])
    draw_legend(figure, panels[0][0], 4)


def _draw_error_panel(axes: Axes, series: Numbers, reading: Reading, other: Reading) -> None:
    x = series["x"]
    for name in PROCEDURES:
        style = STYLES[name]
        draw_series(axes, x, series[reading][name], style, "-", name)
        if name != "local":  # both formulas say the same of it
            formulas = [point["formula"] for point in series[other][name]]
            axes.plot(x, formulas, ":", color=style.colour, linewidth=1.2)
    axes.plot([], [], ":", color=GREY, linewidth=1.2, label="the other formula")
    axes.set(xlim=(0, None), ylim=(0, 3))


SIZES = [2, 3, 4, 6, 8, 12, 16]
SPREAD_RATIOS = [0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.5, 6.5, 9.0]
"""τ² over the error of a client alone."""


def compute_region(seed: int, trials: int) -> Numbers:
    """The gain of a cluster over training alone, by the number of its clients and its spread."""
    found: Numbers = {reading: [] for reading in READINGS}
    for reading, size, share in product(READINGS, SIZES, SPREAD_RATIOS):
        model = GaussianMeans.of_equal_sizes(size, 0, 10, gap=0.0, sigma=3.0, tau=float(np.sqrt(share * 0.9)))
        drawn = simulate_means(model, trials, seed, "region", size, int(100 * share), reading=reading)
        gain = drawn.gain(model.weights("local"), model.weights("clustered"))
        found[reading].append({"clients": size, "share": share, **gain})
    limits = {reading: [largest_spread(size, 1.0, reading) for size in SIZES] for reading in READINGS}
    return {"trials": trials, "sizes": SIZES, "limits": limits, **found}


def draw_region(figure: Figure, numbers: Numbers) -> None:
    """Every simulated federation as a mark, and the two conditions as lines."""
    panels = figure.subplots(1, 2, sharey=True)
    conditions = (("exact", "-", "τ² < σ²/n₀ (exact)"), ("printed", "--", "τ² < m₁σ²/(2n₀) (printed)"))
    for axes, (drawn, title) in zip(panels, TITLES.items(), strict=True):
        for reading, line, name in conditions:
            axes.plot(numbers["sizes"], numbers["limits"][reading], line, color="#000000", label=name)
        for kind, (marker, colour, name) in MARKS.items():
            rows = [row for row in numbers[drawn] if _kind(row) == kind]
            axes.scatter(
                [row["clients"] for row in rows], [row["share"] for row in rows], marker=marker, c=colour,
                s=26, label=name, zorder=3,
            )  # fmt: skip
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="clients of the cluster m₁", ylim=(0, 9.5))
    panels[0].set_ylabel("τ² / (σ²/n₀)")
    draw_legend(figure, panels[0], 3)


MARKS = {
    "better": ("o", COLOURS[0], "cluster better"),
    "worse": ("X", COLOURS[1], "training alone better"),
    "undecided": ("_", GREY, "undecided at 95 %"),
}


def _kind(row: Numbers) -> str:
    return "better" if row["low"] > 0 else "worse" if row["high"] < 0 else "undecided"


SECTION = "section 3, Theoretical foundation"
ERROR_STUDIES = {
    "errors": Study(
        "errors of local, federated and clustered estimation", SECTION, compute_errors, draw_errors, 5.4
    ),
    "region": Study(
        "where a cluster is better than training alone", SECTION, compute_region, draw_region, 3.8
    ),
}
