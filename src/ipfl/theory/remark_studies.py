"""The remarks R1, R2 and R3 that the paper draws from its formulas, each as numbers and a figure.

R1: a client gains from its cluster if the spread inside is small, the cluster is large and data are noisy.
R2: personalized model appeal (PMA) rises when the within-cluster bias falls.
R3: rewards for contributions lead clients to clusters of clients like them.

Errors stand for accuracy here: PMA is the reference's error minus the client's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipfl.theory.error_studies import TAUS, standard_model
from ipfl.theory.gaussian_means import (
    GaussianMeans,
    contribution,
    farthest_newcomer,
    mixed_error,
    mixed_share,
)
from ipfl.theory.monte_carlo import estimate, simulate_contribution, simulate_means
from ipfl.theory.study import STYLES, Numbers, Study, draw_bands, draw_legend

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
    """Errors alone, in a cluster, and with the best mix of both, by spread, clients and noise."""
    found: Numbers = {"trials": trials}
    for name, values in VARIED.items():
        formula: dict[str, list[float]] = {"local": [], "clustered": [], "mixed": []}
        simulated: dict[str, list[Numbers]] = {kind: [] for kind in formula}
        for number, value in enumerate(values):
            model = _cluster(**{name: value})
            formula["local"].append(model.noise)
            formula["clustered"].append(model.procedure_error("clustered"))
            formula["mixed"].append(mixed_error(model.first, model.noise, model.tau))
            drawn = simulate_means(model, trials, seed, "remark-1", name, number)
            share = mixed_share(model.noise, model.tau)
            weights = {kind: model.weights(kind) for kind in ("local", "clustered")}
            weights["mixed"] = share * weights["local"] + (1 - share) * weights["clustered"]
            for kind, of in weights.items():
                simulated[kind].append(estimate(drawn.errors(of)).record())
        found[name] = {"x": values, "formula": formula, "simulated": simulated}
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
        series = numbers[name]
        for kind, values in series["formula"].items():
            text = "best mix of both (not in the paper)" if kind == "mixed" else kind
            axes.plot(series["x"], values, STYLES[kind].line, color=STYLES[kind].colour, label=text)
            draw_bands(axes, series["x"], series["simulated"][kind], STYLES[kind])
        axes.set(xlabel=label, xlim=(0, None), ylim=(0, 2))
    panels[0].set_ylabel("mean squared error")
    draw_legend(figure, panels[0], 3)


MISPLACED_CLIENTS = range(6)
"""Clients of the other distribution in a cluster of ten."""


def compute_remark_2(seed: int, trials: int) -> Numbers:
    """PMA by the bias that strangers bring into a cluster, and by the spread inside a pure cluster."""
    model = standard_model()
    drawn = simulate_means(model, trials, seed, "remark-2", "strangers")
    federated = model.weights("federated")
    bias, formula, simulated = [], [], []
    for count in MISPLACED_CLIENTS:
        weights = np.zeros(len(model.sizes))
        weights[: model.first - count] = weights[model.first : model.first + count] = 1 / model.first
        bias.append((count / model.first * model.gap) ** 2)
        formula.append(model.error(federated) - model.error(weights))
        simulated.append(estimate(drawn.errors(federated) - drawn.errors(weights)).record())
    spread: Numbers = {"x": [tau**2 for tau in TAUS], "formula": {}, "simulated": {}}
    for reference in ("federated", "local"):
        gains, records = [], []
        for number, tau in enumerate(TAUS):
            one = standard_model(tau=tau)
            trial = simulate_means(one, trials, seed, "remark-2", "spread", number)
            gains.append(one.procedure_error(reference) - one.procedure_error("clustered"))
            gained = trial.errors(one.weights(reference)) - trial.errors(one.weights("clustered"))
            records.append(estimate(gained).record())
        spread["formula"][reference], spread["simulated"][reference] = gains, records
    strangers = {"x": bias, "count": list(MISPLACED_CLIENTS), "formula": formula, "simulated": simulated}
    return {"trials": trials, "strangers": strangers, "spread": spread}


def draw_remark_2(figure: Figure, numbers: Numbers) -> None:
    """PMA by the bias from strangers, and by the spread with either reference."""
    left, right = figure.subplots(1, 2)
    style, series = STYLES["clustered"], numbers["strangers"]
    left.plot(series["x"], series["formula"], "-", color=style.colour)
    draw_bands(left, series["x"], series["simulated"], style)
    for x, y, count in zip(series["x"], series["formula"], series["count"], strict=True):
        beside, side = ((-6, -3), "right") if count == 0 else ((7, 2), "left")
        left.annotate(f"{count}", (x, y), beside, textcoords="offset points", ha=side, fontsize=8.5)
    left.set(title="0 to 5 strangers in a cluster of ten", xlabel="within-cluster bias: (share · |β₂ − β₁|)²")
    left.set(ylabel="PMA: error of the reference − own")
    series = numbers["spread"]
    for reference, values in series["formula"].items():
        style = STYLES[reference]
        right.plot(series["x"], values, style.line, color=style.colour, label=f"reference: {reference}")
        draw_bands(right, series["x"], series["simulated"][reference], style)
    right.set(title="Spread inside a pure cluster", xlabel="τ²")
    right.legend()
    for axes in (left, right):
        axes.axhline(0, color="#555555", linewidth=0.8)
        axes.set_xmargin(0.12)


MARKETS = (("cluster 1", 0.0, 10), ("cluster 2", 2.0, 6))
"""Name, β and number of clients."""
PLACES = np.linspace(-1.5, 3.5, 21)
SPREAD, NOISE = 0.4, 0.9


def compute_remark_3(seed: int, trials: int) -> Numbers:
    """The worth of a newcomer to two clusters, by the place of its own mean."""
    found: Numbers = {"trials": trials, "x": PLACES.tolist(), "tau": SPREAD, "noise": NOISE, "clusters": []}
    for name, centre, clients in MARKETS:
        away = PLACES - centre
        simulated = simulate_contribution(clients, NOISE, SPREAD, away, trials, seed, "remark-3", name)
        found["clusters"].append(
            {
                "name": name, "centre": centre, "clients": clients,
                "reach": farthest_newcomer(clients, NOISE, SPREAD),
                "formula": [contribution(clients, NOISE, SPREAD, float(d)) for d in away],
                "simulated": [one.record() for one in simulated],
            }
        )  # fmt: skip
    return found


def draw_remark_3(figure: Figure, numbers: Numbers) -> None:
    """The contribution to each cluster; it earns nothing below zero."""
    axes = figure.subplots()
    for cluster, style in zip(numbers["clusters"], (STYLES["local"], STYLES["federated"]), strict=True):
        label = f"{cluster['name']}: β = {cluster['centre']:g}, {cluster['clients']} clients"
        axes.plot(numbers["x"], cluster["formula"], style.line, color=style.colour)
        axes.annotate(
            label, (cluster["centre"], max(cluster["formula"])), (0, 9), textcoords="offset points",
            ha="center", color=style.colour,
        )  # fmt: skip
        draw_bands(axes, numbers["x"], cluster["simulated"], style)
        low, high = cluster["centre"] - cluster["reach"], cluster["centre"] + cluster["reach"]
        axes.axvspan(low, high, color=style.colour, alpha=0.08, linewidth=0)
    axes.axhline(0, color="#555555", linewidth=0.8)
    highest = max(max(cluster["formula"]) for cluster in numbers["clusters"])
    axes.set(
        ylim=(-2.5 * highest, 1.5 * highest),
        xlabel="mean of the newcomer's data μ   (shaded: where it is worth something to the cluster)",
        ylabel="contribution: by how much\na member's error falls",
    )


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
