"""Do tokens follow the quality of a client's data? Graded label noise, and graded sample sizes.

    python experiments/quality.py --seeds 10

Rank correlation (Spearman) over the clients of the tokens that each won or lost with the quality of its data:
the share of right labels (0, 20, 40, 60 % wrong), or the number of samples. Every contribution signal,
K = 2 and 4.
"""

from __future__ import annotations

from statistics import fmean, stdev

import numpy as np
from scipy.stats import spearmanr

from grid import Figures, markdown_table, play_study, reported, write_table
from ipfl.data.federated import PartitionedDataset
from ipfl.results.result import Result
from ipfl.training.task import Task

SIGNALS = {
    "momentum": (),
    "momentum, not robust": ("method.guards.rule=paper",),
    "the paper's gradient": ("method.contribution.rule=paper",),
    "printed rules": ("method.name=ipfl",),
}
NOISE = ("task.label_noise=[0, 0.2, 0.4, 0.6]",)
SIZES = ("task.sizes=unequal", "task.size_spread=0.7")
FOUR = (
    *("task.clients=40", "task.samples=36", "task.distributions=permuted:4", "task.partition=linear"),
    "method.clusters=4",
)
TASKS = {
    "label noise, K = 2": NOISE,
    "label noise, K = 4": (*NOISE, *FOUR),
    "sample sizes, K = 2": SIZES,
    "sample sizes, K = 4": (*SIZES, *FOUR),
}
GRID = {f"{task} / {signal}": (*TASKS[task], *SIGNALS[signal]) for task in TASKS for signal in SIGNALS}


def figures_of(result: Result, task: Task) -> Figures:
    """The numbers that are kept of a run."""
    balances, data = np.array(result.summary["report"]["balances"]), task.data
    if isinstance(data, PartitionedDataset) and data.noise is not None:
        quality = -data.noise.shares[list(data.clients)]
    else:
        quality = np.array([data.sizes(client)["train"] for client in data.clients])
    return {
        "correlation": float(spearmanr(balances, quality).statistic),
        "accuracy": result.personalized_accuracy,
        "purity": result.summary["purity"],
    }


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, "quality", GRID, figures_of)
    rows = []
    for setting in GRID:
        if found := reported(runs, setting):
            rho = [run["correlation"] for run in found]
            spread = f" ± {stdev(rho):.2f}" if len(rho) > 1 else ""
            accuracy = f"{100 * fmean(run['accuracy'] for run in found):.1f}"
            rows.append([*setting.split(" / "), f"{fmean(rho):.2f}{spread}", accuracy, str(len(found))])
    head = ["quality", "contribution", "rank correlation", "accuracy", "seeds"]
    write_table("experiments/quality.py", markdown_table(head, rows))


if __name__ == "__main__":
    main()
