"""Never worse than one model: IP-FL beside its strongest rivals on every way to split the digits.

    python experiments/partitions.py --seeds 10

Mean personalized accuracy over the clients, the same seeds and clients for all methods: mixtures of two
distributions of labels, and class shares that one model could learn (Dirichlet, classes, rotated). The table
says for every row who is first, and how far IP-FL is behind it and ahead of FedAvg, paired by seed. The
letters of EMNIST are in `ipfl reproduce emnist-splits`.
"""

from __future__ import annotations

from statistics import fmean, stdev

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between

RESULTS = HERE / "results" / "partitions.json"
DOCUMENT = HERE.parent / "docs" / "market.md"
METHODS = ("ipfl-plus", "fedavg", "finetune", "ifca", "ditto", "fedala", "fedem", "local")
MIXTURES = ("10:90", "30:70", "40:60", "linear", "random")
PARTITIONS: dict[str, tuple[str, ...]] = {
    **{name: (f"task.partition={name}",) for name in MIXTURES},
    **{
        f"Dirichlet {alpha}": (f"task.partition=dirichlet:{alpha}", "task.distributions=iid")
        for alpha in ("0.1", "0.3", "1.0")
    },
    "2 classes": ("task.partition=classes:2", "task.distributions=iid"),
    "rotated": ("task.distributions=rotated",),
}
GRID = {
    f"{partition} / {method}": (*split, f"method.name={method}")
    for partition, split in PARTITIONS.items()
    for method in METHODS
}


def play(setting: str, seed: int) -> Figures:
    """One run's figures."""
    _, result = run_settings(GRID[setting], seed)
    return {"accuracy": result.personalized_accuracy, "purity": result.summary["purity"]}


def row(partition: str, runs: Runs) -> list[str] | None:
    """A line of the table; only seeds that all methods have."""
    found = {method: runs.get(f"{partition} / {method}", {}) for method in METHODS}
    seeds = sorted(set.intersection(*(set(one) for one in found.values())))
    if not seeds:
        return None
    means = {m: 100 * fmean(one[seed]["accuracy"] for seed in seeds) for m, one in found.items()}
    first = max(means, key=lambda method: means[method])
    cells = [f"**{means[m]:.1f}**" if m == first else f"{means[m]:.1f}" for m in METHODS]
    return [
        partition,
        *cells,
        *(_gain(found, other, seeds) for other in (first, "fedavg")),
        str(len(seeds)),
    ]


def _gain(found: dict[str, dict[str, Figures]], other: str, seeds: list[str]) -> str:
    """IP-FL's mean gain over another method in points, with the standard error of the paired differences."""
    gains = [100 * (found["ipfl-plus"][seed]["accuracy"] - found[other][seed]["accuracy"]) for seed in seeds]
    error = f" ± {stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
    return f"{fmean(gains):+.1f}{error}"


def table(runs: Runs) -> str:
    """Accuracy of every method on every split."""
    rows = [found for partition in PARTITIONS if (found := row(partition, runs))]
    return markdown_table(["split", *METHODS, "IP-FL − first", "IP-FL − FedAvg", "seeds"], rows)


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, 10, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/partitions.py"), table(runs))


if __name__ == "__main__":
    main()
