"""Proposition 1 and Theorems 3, 4 and 6 as figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipfl.core import stream
from ipfl.core.arrays import Ints
from ipfl.figure_style import COLOURS, GREY, set_log_scale
from ipfl.theory.clustering import clustering_loss, iterate
from ipfl.theory.convergence import StepSize, descend, random_losses
from ipfl.theory.study import Numbers, Study, draw_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS, PER_GROUP = 4, 10
MAX_STARTS = 300
SHOWN_STARTS = 60


def compute_clustering(seed: int, trials: int) -> Numbers:
    """The iteration of Proposition 1 from many starts: 40 clients of unequal size in four groups."""
    rng = stream(seed, "theory", "clustering")
    group = np.repeat(np.arange(GROUPS), PER_GROUP)
    sizes = rng.integers(5, 41, len(group))
    means = (
        2.0 * group + 0.4 * rng.standard_normal(len(group)) + rng.standard_normal(len(group)) / np.sqrt(sizes)
    )
    runs = [
        iterate(means, sizes, rng.choice(means, GROUPS, replace=False))
        for _ in range(min(trials, MAX_STARTS))
    ]
    final = np.array([run.losses[-1] for run in runs])
    best = float(final.min())
    alone = np.array([np.average(means, weights=sizes)])
    reached_best = np.isclose(final, best)
    return {
        "clients": len(group), "clusters": GROUPS, "starts": len(runs),
        "largest_rise": max(float(np.diff(run.losses).max()) for run in runs),
        "steps": np.bincount([run.steps for run in runs]).tolist(),
        "reached_best": float(reached_best.mean()),
        "one_cluster_loss": clustering_loss(means, sizes, alone, np.zeros(len(group), dtype=np.int64)),
        "best_loss": best, "worst_loss": float(final.max()),
        "losses": [
            {"loss": run.losses, "is_best": bool(best_one)}
            for run, best_one in zip(runs[:SHOWN_STARTS], reached_best, strict=False)
        ],
    }  # fmt: skip


def draw_clustering(figure: Figure, numbers: Numbers) -> None:
    """The loss by half iterations, and how many iterations were needed."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for is_best, colour, name in (
        (True, COLOURS[0], "the best minimum"),
        (False, COLOURS[1], "another minimum"),
    ):
        chosen = [run["loss"] for run in numbers["losses"] if run["is_best"] == is_best]
        for number, losses in enumerate(chosen):
            x = np.arange(len(losses)) / 2
            label = f"ends in {name}" if number == 0 else None
            left.plot(x, losses, "-" if is_best else "--", color=colour, alpha=0.5, linewidth=1, label=label)
            left.plot(x[-1], losses[-1], "o" if is_best else "X", color=colour, markersize=4)
    set_log_scale(left, y=True)
    left.set(xlabel="iteration (clients choose, centres move)", ylabel="loss Σ nᵢ (β − μ̂ᵢ)²")
    left.set(title=f"The loss never rises ({len(numbers['losses'])} of {numbers['starts']} starts)")
    left.legend()
    right.bar(range(len(numbers["steps"])), numbers["steps"], color=COLOURS[0])
    right.set(xlabel="iterations until it stops", ylabel="starts", title="It stops")
    right.locator_params(axis="x", integer=True)


CLIENTS, DIMENSION, ROUNDS, LOCAL_STEPS = 20, 5, 2000, 5
GRADIENT_NOISE, REPEATS = 1.0, 5
STEP_SIZES = {
    "constant": (0.0, "η"),
    "diminishing": (0.75, "η/(t + 1)^0.75: both conditions hold"),
    "too fast": (2.0, "η/(t + 1)²: the sum is finite"),
}
"""The exponents p of η/(t + 1)^p, and what the figure says of them."""


def _step(kind: str, first: float) -> StepSize:
    exponent, _ = STEP_SIZES[kind]
    return lambda t: first / (t + 1) ** exponent


def compute_convergence(seed: int, trials: int) -> Numbers:
    """Federated descent on convex losses with three kinds of steps; then two cluster models and PMA.

    Args:
        seed: For losses and noise.
        trials: At most 5 repetitions of what is noisy.
    """
    losses = random_losses(CLIENTS, DIMENSION, seed)
    first = 1 / losses.smoothness
    lowest = losses.loss(losses.minimum)
    shown = np.unique(np.round(np.geomspace(1, ROUNDS, 60)).astype(int))
    found: Numbers = {"clients": CLIENTS, "dimension": DIMENSION, "local_steps": LOCAL_STEPS, "step": first}
    found["round"] = shown.tolist()
    found["drift"] = {}
    found["noise"] = {}
    for kind in STEP_SIZES:
        models = descend(losses, _step(kind, first), ROUNDS, LOCAL_STEPS)
        found["drift"][kind] = [losses.loss(models[t]) - lowest for t in shown]
        repeats = []
        for repeat in range(min(trials, REPEATS)):
            rng = stream(seed, "theory", "convergence", kind, repeat)
            models = descend(losses, _step(kind, first), ROUNDS, 1, GRADIENT_NOISE, rng)
            repeats.append([losses.loss(models[t]) - lowest for t in shown])
        found["noise"][kind] = np.mean(repeats, axis=0).tolist()
    limit = losses.loss(losses.constant_step_limit(first, LOCAL_STEPS)) - lowest
    return {**found, "constant_step_limit": limit, "clusters": _compute_pma(seed, shown)}


def _compute_pma(seed: int, shown: Ints) -> Numbers:
    """Two groups of clients, a model for each; PMA_i(t) = L_i(M*) − L_i(θ_k(t)), M* the one model for all."""
    losses = random_losses(CLIENTS, DIMENSION, seed, gap=3.0)
    rho = losses.client_losses(losses.minimum)
    pma, limits = np.zeros((CLIENTS, len(shown))), np.zeros(CLIENTS)
    for members in (np.arange(CLIENTS // 2), np.arange(CLIENTS // 2, CLIENTS)):
        group = losses.subset(members)
        models = descend(group, _step("diminishing", 1 / losses.smoothness), ROUNDS, LOCAL_STEPS)
        pma[members] = np.array([rho[members] - group.client_losses(models[t]) for t in shown]).T
        limits[members] = rho[members] - group.client_losses(group.minimum)
    return {
        "pma": pma.tolist(), "limit": limits.tolist(), "positive": int((limits > 0).sum()),
        "distance": np.abs(pma - limits[:, None]).max(axis=0).tolist(),
    }  # fmt: skip


def draw_convergence(figure: Figure, numbers: Numbers) -> None:
    """Distance from the least loss with local steps and with noise; PMA of every client."""
    panels = figure.subplots(1, 3)
    titles = {
        "drift": f"{numbers['local_steps']} local steps, exact gradients",
        "noise": "1 local step, noisy gradients",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=False):
        for number, (kind, (_, text)) in enumerate(STEP_SIZES.items()):
            line = ("-", "--", ":")[number]
            axes.plot(
                numbers["round"], numbers[key][kind], line, color=COLOURS[number], label=f"{kind}: {text}"
            )
        set_log_scale(axes, x=True, y=True)
        axes.set_title(title, fontsize=9.5)
        axes.set_xlabel("round t")
    panels[0].axhline(numbers["constant_step_limit"], color=GREY, linewidth=0.8)
    panels[0].set_ylabel("L(Mₜ) − L(M*)")
    last, clusters = panels[2], numbers["clusters"]
    for client, values in enumerate(clusters["pma"]):
        is_first = client < len(clusters["pma"]) // 2
        last.plot(
            numbers["round"], values, "-" if is_first else "--", color=COLOURS[0 if is_first else 1],
            linewidth=0.8, alpha=0.8,
        )  # fmt: skip
    last.axhline(0, color=GREY, linewidth=0.8)
    set_log_scale(last, x=True)
    last.set(xlabel="round t", ylabel="PMA of each client (loss)")
    last.set_title("Two cluster models", fontsize=9.5)
    draw_legend(figure, panels[0], 1)


CONVERGENCE_STUDIES = {
    "clustering": Study(
        "clients choose, centres move: the loss never rises, and it stops",
        "Proposition 1",
        compute_clustering,
        draw_clustering,
    ),
    "convergence": Study(
        "diminishing steps reach the minimum of a convex loss",
        "Theorems 3, 4 and 6",
        compute_convergence,
        draw_convergence,
        3.9,
    ),
}
