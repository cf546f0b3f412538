"""Section 3 as figures: errors of the three procedures; where a cluster is better than training alone."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ipfl.theory.gaussian_means import PROCEDURES, READINGS, GaussianMeans, Reading, largest_spread
from ipfl.theory.monte_carlo import Drawing, estimate, simulate_means
from ipfl.theory.study import STYLES, Numbers, Study, draw_bands, draw_legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWINGS: dict[Drawing, str] = {
    "root": "Clients drawn around their cluster (the model)",
    "pairwise": "Clients drawn around client 0, one by one (as printed)",
}
"""Ways to draw clients → the titles of their panels."""
FORMULA: dict[Drawing, Reading] = {"root": "exact", "pairwise": "printed"}
"""The formula that belongs to each."""
GAPS = [round(0.25 * step, 2) for step in range(9)]
TAUS = [round(0.2 * step, 2) for step in range(9)]


def standard_model(gap: float = 1.0, tau: float = 0.4) -> GaussianMeans:
    """10 + 10 clients with 10 observations each of σ = 3: a client alone has the error 0.9."""
    return GaussianMeans.of_equal_sizes(10, 10, 10, gap=gap, sigma=3.0, tau=tau)


def compute_errors(seed: int, trials: int) -> Numbers:
    """Errors by the distance of the clusters and by the spread inside a cluster: formulas and simulation."""
    base, series = standard_model(), dict[str, Numbers]()
    for axis, values in (("gap", GAPS), ("tau", TAUS)):
        models = [standard_model(**{axis: value}) for value in values]
        formula = {
            reading: {name: [one.procedure_error(name, reading) for one in models] for name in PROCEDURES}
            for reading in READINGS
        }
        simulated: Numbers = {drawing: {name: [] for name in PROCEDURES} for drawing in DRAWINGS}
        for drawing in DRAWINGS:
            for number, model in enumerate(models):
                drawn = simulate_means(model, trials, seed, "errors", axis, number, drawing=drawing)
                for name in PROCEDURES:
                    found = estimate(drawn.errors(model.weights(name)))
                    simulated[drawing][name].append(found.record())
        series[axis] = {"x": values, "formula": formula, "simulated": simulated}
    return {
        "clients": [base.first, len(base.sizes) - base.first], "observations": base.sizes[0],
        "sigma": base.sigma, "fixed": {"tau": base.tau, "gap": base.gap}, "trials": trials, **series,
    }  # fmt: skip


def draw_errors(figure: Figure, numbers: Numbers) -> None:
    """A row per way of drawing; lines are formulas, points the simulation with 95 % bands."""
    panels = figure.subplots(2, 2, sharey="row")
    labels = {
        "gap": f"distance of the clusters |β₂ − β₁|   (τ = {numbers['fixed']['tau']})",
        "tau": f"spread inside a cluster τ   (|β₂ − β₁| = {numbers['fixed']['gap']})",
    }
    for row, (drawing, title) in zip(panels, DRAWINGS.items(), strict=True):
        for axes, axis in zip(row, ("gap", "tau"), strict=True):
            _draw_error_panel(axes, numbers[axis], drawing)
            axes.set(xlabel=labels[axis])
        row[0].set(ylabel="mean squared error", title=title)
    draw_legend(figure, panels[0][0], 4)


def _draw_error_panel(axes: Axes, series: Numbers, drawing: Drawing) -> None:
    x = series["x"]
    (other,) = set(READINGS) - {FORMULA[drawing]}
    for name in PROCEDURES:
        style = STYLES[name]
        axes.plot(x, series["formula"][FORMULA[drawing]][name], "-", color=style.colour, label=name)
        if name != "local":  # both formulas say the same of it
            axes.plot(x, series["formula"][other][name], ":", color=style.colour, linewidth=1.2)
        draw_bands(axes, x, series["simulated"][drawing][name], style)
    axes.plot([], [], ":", color="#555555", linewidth=1.2, label="the other formula")
    axes.set(xlim=(0, None), ylim=(0, 3))


SIZES = [2, 3, 4, 6, 8, 12, 16]
SPREAD_RATIOS = [0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.5, 6.5, 9.0]
"""τ² over the error of a client alone."""


def compute_region(seed: int, trials: int) -> Numbers:
    """The gain of a cluster over training alone, by the number of its clients and its spread."""
    found: Numbers = {drawing: [] for drawing in DRAWINGS}
    for drawing, size, share in product(DRAWINGS, SIZES, SPREAD_RATIOS):
        model = GaussianMeans.of_equal_sizes(size, 0, 10, gap=0.0, sigma=3.0, tau=float(np.sqrt(share * 0.9)))
        drawn = simulate_means(model, trials, seed, "region", size, int(100 * share), drawing=drawing)
        gained = drawn.errors(model.weights("local")) - drawn.errors(model.weights("clustered"))
        formula = model.noise - model.procedure_error("clustered", FORMULA[drawing])
        row = {"clients": size, "share": share, "formula": formula, "simulated": estimate(gained).record()}
        found[drawing].append(row)
    limits = {reading: [largest_spread(size, 1.0, reading) for size in SIZES] for reading in READINGS}
    return {"trials": trials, "sizes": SIZES, "limits": limits, **found}


def draw_region(figure: Figure, numbers: Numbers) -> None:
    """Every simulated federation as a mark, and the two conditions as lines."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (drawing, title) in zip(panels, DRAWINGS.items(), strict=True):
        for reading, line in zip(READINGS, ("-", "--"), strict=True):
            name = "τ² < σ²/n₀ (exact)" if reading == "exact" else "τ² < m₁σ²/(2n₀) (printed)"
            axes.plot(numbers["sizes"], numbers["limits"][reading], line, color="#000000", label=name)
        for kind, (marker, colour, name) in MARKS.items():
            rows = [row for row in numbers[drawing] if _kind(row) == kind]
            axes.scatter(
                [row["clients"] for row in rows], [row["share"] for row in rows], marker=marker, c=colour,
                s=26, label=name, zorder=3,
            )  # fmt: skip
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="clients of the cluster m₁", ylim=(0, 9.5))
    panels[0].set_ylabel("τ² / (σ²/n₀)")
    draw_legend(figure, panels[0], 3)


MARKS = {
    "better": ("o", "#0072B2", "cluster better"),
    "worse": ("X", "#D55E00", "training alone better"),
    "undecided": ("_", "#555555", "undecided at 95 %"),
}


def _kind(row: Numbers) -> str:
    simulated = row["simulated"]
    return "better" if simulated["low"] > 0 else "worse" if simulated["high"] < 0 else "undecided"


SECTION = "section 3, Theoretical foundation"
ERROR_STUDIES = {
    "errors": Study(
        "errors of local, federated and clustered estimation", SECTION, compute_errors, draw_errors, 5.4
    ),
    "region": Study(
        "where a cluster is better than training alone", SECTION, compute_region, draw_region, 3.8
    ),
}
