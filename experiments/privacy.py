"""A gradient's secrets against noise; and the cost of privacy in accuracy, against ε.

    python experiments/privacy.py --seeds 5

Needs EMNIST (`IPFL_DATA`, or it is downloaded); `--only digits` does without. The attack
(`ipfl.stress.reconstruction`) is on one gradient over the 12 probe points of every client of the digits, with
the seeds 0 to 4. Accuracy is that of whole runs with a linear model, on the digits and on the letters of
EMNIST. Clips and learning rates were chosen on seed 100 of the digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import fmean

import numpy as np

from grid import Figures, markdown_table, play_study, reported, write_table
from ipfl.client.client import Client
from ipfl.client.privacy_accountant import Releases, epsilon_of
from ipfl.client.private_client import PrivateClient
from ipfl.config.train_section import PrivacyConfig, TrainConfig
from ipfl.config.whole_config import Config
from ipfl.core import EMPTY, stream
from ipfl.results.result import Result
from ipfl.stress.reconstruction import correlation, count_misplaced, guess_label_counts, guess_point
from ipfl.training.task import Task

DELTA = 1e-5
ATTACK_NOISE = {
    "no protection": None,
    "clip only": 1e-9,
    **{f"noise {z:g}": z for z in (0.1, 0.3, 1.0, 3.0, 10.0)},
}
ATTACK_SEEDS = range(5)
PRIVATE = (
    *("privacy.clip=0.3", f"privacy.delta={DELTA}"),
    *("train.epochs=1", "train.batch_size=16", "train.lr=0.3"),
)
TASKS = {
    "digits": (),
    "emnist": (
        *("task.dataset=emnist", "task.distributions=halves", "task.partition=10:90"),
        *("task.clients=40", "task.samples=200"),
    ),
}
METHODS = ("ipfl-plus", "fedavg")
PROTECTION = {
    "no protection": (),
    **{f"noise {z:g}": (*PRIVATE, f"privacy.noise={z}") for z in (0.1, 0.3, 1.0, 3.0)},
}
GRID = {
    f"{task} / {method} / {name}": (*TASKS[task], "task.model=softmax", f"method.name={method}", *settings)
    for task, method, (name, settings) in product(TASKS, METHODS, PROTECTION.items())
}


def figures_of(result: Result, task: Task) -> Figures:
    """The numbers that are kept of a run."""
    privacy = result.summary["privacy"]
    epsilon = None if privacy is None else privacy["largest_epsilon"]
    return {"accuracy": result.personalized_accuracy, "epsilon": epsilon}


def attack(noise: float | None, seed: int) -> tuple[float, float]:
    """Means over clients: points put into wrong classes, and the correlation of guessed and true points."""
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
    return fmean(misplaced), fmean(alike)


def one_release(noise: float | None) -> str:
    """ε of one gradient with this noise."""
    if noise is None or noise < 1e-6:
        return "–"
    return f"{epsilon_of([Releases({(noise, 1.0): 1})], DELTA):.1f}"


def run_cell(found: Sequence[Figures]) -> str:
    """Mean accuracy in % of some runs, and their ε if they have one."""
    if not found:
        return "–"
    accuracy = f"{100 * fmean(one['accuracy'] for one in found):.1f}"
    known = [one["epsilon"] for one in found if one["epsilon"] is not None]
    return f"{accuracy} (ε {fmean(known):.1f})" if known else accuracy


def main() -> None:
    """Plays what is missing, and writes the tables."""
    runs = play_study(__doc__, "privacy", GRID, figures_of)
    rows = []
    for task, method in product(TASKS, METHODS):
        cells = [run_cell(reported(runs, f"{task} / {method} / {name}")) for name in PROTECTION]
        rows.append([task, method, *cells])
    table = markdown_table(["data", "method", *PROTECTION], rows)
    write_table("experiments/privacy.py, whole runs", table)
    rows = []
    for name, noise in ATTACK_NOISE.items():
        every = [attack(noise, seed) for seed in ATTACK_SEEDS]
        means = [f"{fmean(values):.2f}" for values in zip(*every, strict=True)]
        rows.append([name, one_release(noise), *means])
    head = ["protection", "ε of one gradient", "points in the wrong class, of 12", "correlation of images"]
    write_table("experiments/privacy.py, the attack", markdown_table(head, rows))


if __name__ == "__main__":
    main()
