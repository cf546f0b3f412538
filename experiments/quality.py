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

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between
from ipfl.data.label_noise import NoisyLabels

RESULTS = HERE / "results" / "quality.json"
DOCUMENT = HERE.parent / "docs" / "market.md"
SIGNALS = {
    "momentum": (),
    "momentum, not robust": ("method.robust=false",),
    "loo": ("method.contribution=loo",),
    "the paper's gradient": ("method.contribution=clients",),
    "printed rules": ("method.preset=paper",),
}
NOISE = ("task.label_noise=[0, 0.2, 0.4, 0.6]",)
SIZES = ("task.sizes=unequal", "task.size_spread=0.7")
FOUR = (
    "task.clients=40",
    "task.samples=36",
    "task.distributions=permuted:4",
    "task.partition=linear",
    "method.clusters=4",
)
TASKS = {
    "label noise, K = 2": NOISE,
    "label noise, K = 4": (*NOISE, *FOUR),
    "sample sizes, K = 2": SIZES,
    "sample sizes, K = 4": (*SIZES, *FOUR),
}
GRID = {f"{task} / {signal}": (*TASKS[task], *SIGNALS[signal]) for task in TASKS for signal in SIGNALS}


def play(setting: str, seed: int) -> Figures:
    """One run's figures."""
    task, result = run_settings([*GRID[setting], "method.adapt=0"], seed)
    balances = np.array(result.summary["report"]["balances"])
    data = task.data
    if isinstance(data, NoisyLabels):
        quality = -data.noise[list(data.clients)]
    else:
        quality = np.array([data.sizes(client)["train"] for client in data.clients])
    return {
        "correlation": float(spearmanr(balances, quality).statistic),
        "accuracy": result.personalized_accuracy,
        "purity": result.summary["purity"],
    }


def table(runs: Runs) -> str:
    """Correlation and accuracy of every setting."""
    rows = []
    for setting in GRID:
        found = list(runs.get(setting, {}).values())
        if found:
            rho = [run["correlation"] for run in found]
            spread = f" ± {stdev(rho):.2f}" if len(rho) > 1 else ""
            accuracy = f"{100 * fmean(run['accuracy'] for run in found):.1f}"
            rows.append([*setting.split(" / "), f"{fmean(rho):.2f}{spread}", accuracy, str(len(found))])
    return markdown_table(["quality", "contribution", "rank correlation", "accuracy", "seeds"], rows)


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, 10, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/quality.py"), table(runs))


if __name__ == "__main__":
    main()
