"""Is it as good to ask some clients for their preferences as to ask all of them?

    python experiments/queries.py --seeds 10

A round of IP-FL asks two to four clients for every seat, in turn. Here there are many more clients than that:
the same runs with all of them asked in every round, without and with a drift of a fifth of the clients.
"""

from __future__ import annotations

from statistics import fmean, stdev

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between

RESULTS = HERE / "results" / "queries.json"
DOCUMENT = HERE.parent / "docs" / "speed.md"
CLIENTS = 40
DATA: dict[str, tuple[str, ...]] = {
    "digits": ("task.samples=30", "train.per_round=6", "rounds=40"),
    "EMNIST": (
        "task.dataset=emnist",
        "task.distributions=halves",
        "task.samples=60",
        "train.lr=0.05",
        "train.per_round=6",
        "rounds=40",
    ),
}
DRIFT: dict[str, tuple[str, ...]] = {"no drift": (), "drift at round 20": ("task.drift_round=20",)}
ASKED = {"some": (), "all": (f"method.preference_budget={CLIENTS}",)}
GRID = {
    f"{data} / {drift} / {asked}": (f"task.clients={CLIENTS}", *settings, *change, *budget)
    for data, settings in DATA.items()
    for drift, change in DRIFT.items()
    for asked, budget in ASKED.items()
}


def play(setting: str, seed: int) -> Figures:
    """One run's figures; evaluated once, at the end."""
    _, result = run_settings([*GRID[setting], "evaluate.every=1000000"], seed)
    asked = [len({bid.client for bid in line["bids"]}) for line in result.history if line["bids"]]
    return {
        "accuracy": result.personalized_accuracy,
        "purity": result.summary["purity"],
        "asked": fmean(asked),
    }


def table(runs: Runs) -> str:
    """Accuracy and purity of both, paired by seed."""
    rows = []
    for data in DATA:
        for drift in DRIFT:
            some, every = (runs.get(f"{data} / {drift} / {asked}", {}) for asked in ASKED)
            seeds = sorted(set(some) & set(every))
            if not seeds:
                continue
            gains = [100 * (some[seed]["accuracy"] - every[seed]["accuracy"]) for seed in seeds]
            error = f" ± {stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
            pairs = [
                f"{fmean(100 * own[seed]['accuracy'] for seed in seeds):.1f}, "
                f"{fmean(own[seed]['purity'] for seed in seeds):.2f}"
                for own in (some, every)
            ]
            bidders = f"{fmean(some[seed]['asked'] for seed in seeds):.0f}"
            rows.append([data, drift, bidders, *pairs, f"{fmean(gains):+.1f}{error}", str(len(seeds))])
    if not rows:
        return "No runs are committed yet."
    head = ["data", "", f"asked of {CLIENTS}", "some: accuracy, purity", "all", "difference", "seeds"]
    return markdown_table(head, rows)


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, 10, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/queries.py"), table(runs))


if __name__ == "__main__":
    main()
