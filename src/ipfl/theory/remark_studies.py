"""The remarks R1, R2 and R3 that the paper draws from its formulas, each as numbers and a figure.

R1: a client gains from its cluster if the spread inside is small, the cluster is large and data are noisy.
R2: personalized model appeal (PMA) rises when the within-cluster bias falls.
R3: rewards for contributions lead clients to clusters of clients like them.

Errors stand for accuracy here: PMA is the reference's error minus the client's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipfl.figure_style import GREY
from ipfl.theory.error_studies import TAUS, standard_model
from ipfl.theory.gaussian_means import GaussianMeans, contribution, farthest_newcomer
from ipfl.theory.monte_carlo import beside, simulate_contribution, simulate_means
from ipfl.theory.study import STYLES, Numbers, Study, draw_legend, draw_series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIED: dict[str, list[float]] = {
    "tau": TAUS,
    "clients": [2, 3, 5, 8, 12, 20, 30],
    "sigma": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
}
"""The quantities that R1 names → the values tried."""


def _cluster(tau: float = 0.6, clients: float = 10, sigma: float = 3.0) -> GaussianMeans:
    return GaussianMeans.of_equal_sizes(int(clients), 0, 10, gap=0.0, sigma=sigma, tau=tau)


def compute_remark_1(seed: int, trials: int) -> Numbers:
    """Errors alone and in a cluster, by spread, clients and noise."""
    found: Numbers = {"trials": trials}
    for name, values in VARIED.items():
        drawn = [
            simulate_means(_cluster(**{name: value}), trials, seed, "remark-1", name, number)
            for number, value in enumerate(values)
        ]
        points = {kind: [one.procedure_error(kind) for one in drawn] for kind in ("local", "clustered")}
        found[name] = {"x": values, "points": points}
    return found


def draw_remark_1(figure: Figure, numbers: Numbers) -> None:
    """A panel for each thing that R1 names."""
    labels = {
        "tau": "spread inside the cluster τ\n(m₁ = 10, σ = 3)",
        "clients": "clients of the cluster m₁\n(τ = 0.6, σ = 3)",
        "sigma": "noise of an observation σ\n(τ = 0.6, m₁ = 10)",
    }
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (name, label) in zip(panels, labels.items(), strict=True):
        for kind, points in numbers[name]["points"].items():
            draw_series(axes, numbers[name]["x"], points, STYLES[kind], STYLES[kind].line, kind)
        axes.set(xlabel=label, xlim=(0, None), ylim=(0, 2))
    panels[0].set_ylabel("mean squared error")
    draw_legend(figure, panels[0], 2)


MISPLACED_CLIENTS = range(6)
"""Clients of the other distribution in a cluster of ten."""


def compute_remark_2(seed: int, trials: int) -> Numbers:
    """PMA by the bias that strangers bring into a cluster, and by the spread inside a pure cluster."""
    model = standard_model()
    drawn = simulate_means(model, trials, seed, "remark-2", "strangers")
    bias, gains = [], []
    for count in MISPLACED_CLIENTS:
        weights = np.zeros(len(model.sizes))
        weights[: model.first - count] = weights[model.first : model.first + count] = 1 / model.first
        bias.append((count / model.first * model.gap) ** 2)
        gains.append(drawn.gain(model.weights("federated"), weights))
    spreads = [
        simulate_means(standard_model(tau=tau), trials, seed, "remark-2", "spread", number)
        for number, tau in enumerate(TAUS)
    ]
    over = {
        name: [one.gain(one.model.weights(name), one.model.weights("clustered")) for one in spreads]
        for name in ("federated", "local")
    }
    strangers = {"x": bias, "count": list(MISPLACED_CLIENTS), "points": gains}
    return {"trials": trials, "strangers": strangers, "spread": {"x": [tau**2 for tau in TAUS], "over": over}}


def draw_remark_2(figure: Figure, numbers: Numbers) -> None:
    """PMA by the bias from strangers, and by the spread with either reference."""
    left, right = figure.subplots(1, 2)
    series = numbers["strangers"]
    draw_series(left, series["x"], series["points"], STYLES["clustered"], "-")
    for x, point, count in zip(series["x"], series["points"], series["count"], strict=True):
        offset, side = ((-6, -3), "right") if count == 0 else ((7, 2), "left")
        left.annotate(
            f"{count}", (x, point["formula"]), offset, textcoords="offset points", ha=side, fontsize=8.5
        )
    left.set(title="0 to 5 strangers in a cluster of ten", xlabel="within-cluster bias: (share · |β₂ − β₁|)²")
    left.set(ylabel="PMA: error of the reference − own")
    for name, points in numbers["spread"]["over"].items():
        style = STYLES[name]
        draw_series(right, numbers["spread"]["x"], points, style, style.line, f"reference: {name}")
    right.set(title="Spread inside a pure cluster", xlabel="τ²")
    right.legend()
    for axes in (left, right):
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_xmargin(0.12)


MARKETS = (("cluster 1", 0.0, 10), ("cluster 2", 2.0, 6))
"""Name, β and number of clients."""
MEANS = np.linspace(-1.5, 3.5, 21)
SPREAD, NOISE = 0.4, 0.9


def compute_remark_3(seed: int, trials: int) -> Numbers:
    """The worth of a newcomer to two clusters, by the place of its own mean."""
    found: Numbers = {"trials": trials, "x": MEANS.tolist(), "tau": SPREAD, "noise": NOISE, "clusters": []}
    for name, centre, clients in MARKETS:
        away = MEANS - centre
        simulated = simulate_contribution(clients, NOISE, SPREAD, away, trials, seed, "remark-3", name)
        formulas = (contribution(clients, NOISE, SPREAD, float(distance)) for distance in away)
        found["clusters"].append(
            {
                "name": name, "centre": centre, "clients": clients,
                "reach": farthest_newcomer(clients, NOISE, SPREAD),
                "points": [beside(*pair) for pair in zip(formulas, simulated, strict=True)],
            }
        )  # fmt: skip
    return found


def draw_remark_3(figure: Figure, numbers: Numbers) -> None:
    """The contribution to each cluster; it earns nothing below zero."""
    axes = figure.subplots()
    for cluster, style in zip(numbers["clusters"], (STYLES["local"], STYLES["federated"]), strict=True):
        label = f"{cluster['name']}: β = {cluster['centre']:g}, {cluster['clients']} clients"
        draw_series(axes, numbers["x"], cluster["points"], style, style.line)
        axes.annotate(
            label, (cluster["centre"], _highest(cluster)), (0, 9), textcoords="offset points",
            ha="center", color=style.colour,
        )  # fmt: skip
        low, high = cluster["centre"] - cluster["reach"], cluster["centre"] + cluster["reach"]
        axes.axvspan(low, high, color=style.colour, alpha=0.08, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=0.8)
    highest = max(map(_highest, numbers["clusters"]))
    axes.set(
        ylim=(-2.5 * highest, 1.5 * highest),
        xlabel="mean of the newcomer's data μ   (shaded: where it is worth something to the cluster)",
        ylabel="contribution: by how much\na member's error falls",
    )


def _highest(cluster: Numbers) -> float:
    return max(float(point["formula"]) for point in cluster["points"])


REMARK_STUDIES = {
    "remark-1": Study(
        "small spread, many clients and noisy data make a cluster worth it",
        "section 3, R1",
        compute_remark_1,
        draw_remark_1,
    ),
    "remark-2": Study(
        "PMA rises when the within-cluster bias falls", "section 3, R2", compute_remark_2, draw_remark_2
    ),
    "remark-3": Study(
        "contributions lead clients to clusters like them", "section 3, R3", compute_remark_3, draw_remark_3
    ),
}
