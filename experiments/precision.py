"""Is training in bfloat16 as good as in float32? Accuracy and order of methods, the same seeds for both.

    python experiments/precision.py --seeds 5

Personalized accuracy of every method in both precisions. Without hardware for bfloat16 the same numbers come
out, many times slower.
"""

from __future__ import annotations

from statistics import fmean, stdev

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between

RESULTS = HERE / "results" / "precision.json"
DOCUMENT = HERE.parent / "docs" / "speed.md"
METHODS = ("ipfl-plus", "finetune", "ifca", "fedavg")
TASKS: dict[str, tuple[str, ...]] = {
    "digits": (),
    "EMNIST": (
        "task.dataset=emnist",
        "task.distributions=halves",
        "task.samples=100",
        "train.lr=0.05",
    ),
    "CIFAR-10": (
        "task.dataset=cifar10",
        "task.distributions=rotated",
        "task.samples=250",
        "train.batch_size=50",
        "rounds=15",
    ),
}
PRECISIONS = ("float32", "bf16")
GRID = {
    f"{task} / {method} / {precision}": (*settings, f"method.name={method}", f"train.precision={precision}")
    for task, settings in TASKS.items()
    for method in METHODS
    for precision in PRECISIONS
}


def play(setting: str, seed: int) -> Figures:
    """One run's figures; evaluated once, at the end."""
    _, result = run_settings([*GRID[setting], "evaluate.every=1000000"], seed)
    return {"accuracy": result.personalized_accuracy}


def table(runs: Runs) -> str:
    """Both accuracies of every method, their paired difference, and its place among the methods."""
    rows = [row for task in TASKS for row in task_rows(task, runs)]
    if not rows:
        return "No runs are committed yet."
    return markdown_table(["data", "method", *PRECISIONS, "difference", "places", "seeds"], rows)


def task_rows(task: str, runs: Runs) -> list[list[str]]:
    """A row per method; only seeds that all runs have."""
    found = {m: [runs.get(f"{task} / {m} / {p}", {}) for p in PRECISIONS] for m in METHODS}
    seeds = sorted(set.intersection(*(set(one) for pair in found.values() for one in pair)))
    if not seeds:
        return []
    accuracy = {m: [[100 * one[s]["accuracy"] for s in seeds] for one in pair] for m, pair in found.items()}
    rows = []
    for method, pair in accuracy.items():
        places = [
            1 + sum(fmean(other[p]) > fmean(own) for other in accuracy.values()) for p, own in enumerate(pair)
        ]
        gains = [half - single for single, half in zip(*pair, strict=True)]
        error = f" ± {stdev(gains) / len(gains) ** 0.5:.2f}" if len(gains) > 1 else ""
        means = [f"{fmean(own):.1f}" for own in pair]
        gain = f"{fmean(gains):+.2f}{error}"
        rows.append([task, method, *means, gain, " and ".join(map(str, places)), str(len(seeds))])
    return rows


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, 5, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/precision.py"), table(runs))


if __name__ == "__main__":
    main()
