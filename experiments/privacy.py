"""What a gradient gives away, against noise; and what privacy costs in accuracy, against ε.

    OMP_NUM_THREADS=1 python experiments/privacy.py --seeds 5 --processes 1

Needs EMNIST (`IPFL_DATA`, or it is downloaded); `--only digits` and `--only attack` do without. A seed takes
about 8 minutes of processor time, 7 of them for EMNIST (from single runs: 1 to 5 s on the digits, 14 to 24 s
on EMNIST), so 5 seeds about 40. Every run is kept when it ends: what is there is not run again.

The attack (`ipfl.stress.reconstruction`) is on one gradient over the 12 probe points of every client of
the digits. Accuracy is that of whole runs with a linear model, on the digits and on the letters of EMNIST.
Clips and learning rates were chosen on seed 100 of the digits.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between
from ipfl.client.client import Client
from ipfl.client.privacy_accountant import Releases
from ipfl.client.private_client import PrivateClient
from ipfl.config.run_config import Config
from ipfl.config.train_section import PrivacyConfig, TrainConfig
from ipfl.core import EMPTY, stream
from ipfl.stress.reconstruction import correlation, count_misplaced, guess_label_counts, guess_point
from ipfl.training.task import Task

RESULTS = HERE / "results" / "privacy.json"
DOCUMENT = HERE.parent / "docs" / "privacy.md"
FIGURE = HERE.parent / "docs" / "img" / "privacy.png"
DELTA = 1e-5
TUNING_SEED = 100
"""From here on: clips and learning rates were chosen on it."""
ATTACK_NOISE = {
    "no protection": None,
    "clip only": 1e-9,
    **{f"noise {z:g}": z for z in (0.1, 0.3, 1.0, 3.0, 10.0)},
}
RUN_NOISE = (0.1, 0.3, 1.0, 3.0)
MECHANISMS = {
    "update": ("privacy.mechanism=update", "privacy.clip=0.3"),
    "sgd": (
        "privacy.mechanism=sgd",
        "privacy.clip=0.3",
        "train.epochs=1",
        "train.batch_size=16",
        "train.lr=0.3",
    ),
}
METHODS = ("ipfl-plus", "fedavg")
COLORS = ("#0072b2", "#d55e00")
"""Of the methods; they can be told apart by colour-blind readers."""
TASKS = {
    "digits": (),
    "emnist": (
        "task.dataset=emnist",
        "task.distributions=halves",
        "task.partition=10:90",
        "task.clients=40",
        "task.samples=200",
    ),
}
"""Settings of every data set; the digits are the default."""


def grid() -> dict[str, tuple[str, ...]]:
    """Settings by name: attack / protection, or data set / method / mechanism / noise."""
    found: dict[str, tuple[str, ...]] = {f"attack / {name}": () for name in ATTACK_NOISE}
    for (task, of_task), method in product(TASKS.items(), METHODS):
        plain = (*of_task, f"method.name={method}")
        found[f"{task} / {method} / no protection"] = plain
        for (mechanism, settings), noise in product(MECHANISMS.items(), RUN_NOISE):
            more = (*plain, *settings, f"privacy.noise={noise}", f"privacy.delta={DELTA}")
            found[f"{task} / {method} / {mechanism} / noise {noise:g}"] = more
    return found


GRID = grid()


def play(setting: str, seed: int) -> Figures:
    """One run's figures, or those of the attack on all clients of one partition."""
    kind, *rest = setting.split(" / ")
    if kind == "attack":
        return attack(ATTACK_NOISE[rest[0]], seed)
    _, result = run_settings([*GRID[setting], "task.model=softmax"], seed)
    privacy = result.summary["privacy"]
    epsilon = None if privacy is None else privacy["largest_epsilon"]
    return {"accuracy": result.personalized_accuracy, "epsilon": epsilon}


def attack(noise: float | None, seed: int) -> Figures:
    """Mean over clients: points put into wrong classes, and the correlation of guessed and true points."""
    config = Config.load(None, ["task.model=softmax", f"seed={seed}"])
    task = Task.build(config.task, seed)
    network = task.network(seed)
    zeros = np.zeros(network.size, np.float32)
    misplaced, alike = [], []
    for client in task.data.clients:
        parts = task.data.parts(client)
        me = Client(client, 0, "appraise", seed, task.data.classes, parts, network, TrainConfig(), zeros)
        if noise is not None:
            privacy = PrivacyConfig(noise=noise, clip=1.0)
            me = PrivateClient.of(me, privacy, stream(seed, "privacy", client), EMPTY)
        gradient, n = me.gradient(zeros, "probe"), len(parts.probe)
        counts = np.bincount(parts.probe.y, minlength=task.data.classes).astype(np.float64)
        misplaced.append(count_misplaced(guess_label_counts(gradient, network, n), counts))
        inputs = network.inputs(network.points(parts.probe).x).flatten(1).double().numpy()
        for label in np.flatnonzero(counts == 1):
            (place,) = np.flatnonzero(parts.probe.y == label)
            alike.append(correlation(guess_point(gradient, network, int(label), n), inputs[place]))
    return {"points": n, "misplaced": fmean(misplaced), "correlation": fmean(alike)}


def one_release(name: str) -> float | None:
    """ε of one gradient with the noise of a protection; None: there is no bound."""
    noise = ATTACK_NOISE[name]
    if noise is None or noise < 1e-6:
        return None
    releases = Releases()
    releases.add(noise)
    return releases.epsilon(DELTA)


def measured(runs: Runs, setting: str) -> dict[str, Figures]:
    """Figures by seed: of the seed that settings were tuned on only as long as there are no others."""
    found = runs.get(setting, {})
    return {seed: one for seed, one in found.items() if int(seed) < TUNING_SEED} or dict(found)


def attack_table(runs: Runs) -> str:
    """What the attack finds, by protection."""
    rows = []
    for name in ATTACK_NOISE:
        found = measured(runs, f"attack / {name}")
        if found:
            epsilon = one_release(name)
            rows.append(
                [
                    name,
                    "–" if epsilon is None else f"{epsilon:.1f}",
                    f"{fmean(one['misplaced'] for one in found.values()):.2f}",
                    f"{fmean(one['correlation'] for one in found.values()):.2f}",
                    ", ".join(found),
                ]
            )
    head = [
        "protection",
        "ε of one gradient",
        "points in the wrong class, of 12",
        "correlation of images",
        "seeds",
    ]
    return markdown_table(head, rows)


def run_table(runs: Runs) -> str:
    """Accuracy and ε of whole runs."""
    rows = []
    for setting in GRID:
        found = measured(runs, setting)
        if found and not setting.startswith("attack"):
            task, method, mechanism, *noise = setting.split(" / ")
            known = [one["epsilon"] for one in found.values() if one["epsilon"] is not None]
            accuracy = 100 * fmean(one["accuracy"] for one in found.values())
            epsilon = f"{fmean(known):.1f}" if known else "–"
            named = [task, method, mechanism, *(noise or ["–"])]
            rows.append([*named, epsilon, f"{accuracy:.1f}", ", ".join(found)])
    return markdown_table(["data", "method", "mechanism", "noise", "ε", "accuracy, %", "seeds"], rows)


def draw(runs: Runs, path: Path) -> None:
    """First the attack against noise, then accuracy against ε, by data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [task for task in TASKS if any(name.startswith(f"{task} /") for name in runs)]
    width = 5 * (1 + len(shown))
    figure, (left, *others) = plt.subplots(1, 1 + len(shown), figsize=(width, 3.6), layout="constrained")
    noise = [(z, measured(runs, f"attack / {name}")) for name, z in ATTACK_NOISE.items() if z and z > 1e-6]
    known = [(z, list(found.values())) for z, found in noise if found]
    left.plot(
        [z for z, _ in known], [fmean(one["correlation"] for one in f) for _, f in known], "o-", label="image"
    )
    left.plot(
        [z for z, _ in known],
        [1 - fmean(one["misplaced"] / one["points"] for one in f) for _, f in known],
        "s--",
        label="labels",
    )
    left.set(
        xscale="log",
        xlabel="noise (multiples of what a point can change)",
        ylabel="correlation; share of labels guessed right",
        title="What one gradient tells",
    )
    for task, axis in zip(shown, others, strict=True):
        draw_cost(runs, task, axis)
    left.legend(fontsize=8)
    if others:
        others[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    for axis in (left, *others):
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def draw_cost(runs: Runs, task: str, axis: Any) -> None:
    """Accuracy against ε on one data set, with its deviation over seeds; dotted: without protection."""
    for method, color in zip(METHODS, COLORS, strict=True):
        plain = list(measured(runs, f"{task} / {method} / no protection").values())
        if plain:
            level = 100 * fmean(one["accuracy"] for one in plain)
            axis.axhline(level, lw=1.2, ls=":", color=color, label=f"{method}, no protection")
        for mechanism, style in zip(MECHANISMS, ("o-", "s--"), strict=True):
            names = [f"{task} / {method} / {mechanism} / noise {z:g}" for z in RUN_NOISE]
            every = [list(found.values()) for name in names if (found := measured(runs, name))]
            if every:
                accuracies = [[100 * one["accuracy"] for one in found] for found in every]
                axis.errorbar(
                    [fmean(one["epsilon"] for one in found) for found in every],
                    [fmean(found) for found in accuracies],
                    [stdev(found) if len(found) > 1 else 0.0 for found in accuracies],
                    fmt=style,
                    capsize=2,
                    color=color,
                    label=f"{method}, {mechanism}",
                )
    axis.set(
        xscale="log",
        xlabel="ε (largest of a client, δ = 1e-5)",
        ylabel="accuracy (%)",
        title=f"What it costs: {task}",
    )


def main() -> None:
    """Plays what is missing, and writes the tables and the figure."""
    runs = play_study(__doc__, 5, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/privacy.py, the attack"), attack_table(runs))
    write_between(DOCUMENT, marks("experiments/privacy.py, whole runs"), run_table(runs))
    draw(runs, FIGURE)


if __name__ == "__main__":
    main()
