"""Does anybody run out of tokens in a long run? Real training over 500 rounds with 100 clients.

    python experiments/long_runs.py --seeds 1

EMNIST letters under K permutations of the labels, 100 clients of 60 samples, half of them with a seat in
every round, the default rules. `benchmarks/economy.py` plays the same without learning, in a minute.
"""

from __future__ import annotations

from statistics import fmean

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between

RESULTS = HERE / "results" / "long_runs.json"
DOCUMENT = HERE.parent / "docs" / "market.md"
COMMON = (
    "rounds=500",
    "task.clients=100",
    "task.dataset=emnist",
    "task.samples=60",
    "train.lr=0.05",
    "task.model=mlp",
    "train.per_round=50",
    "evaluate.every=500",
    "method.adapt=0",
)
GRID = {
    f"K = {clusters}": (
        *COMMON,
        f"method.clusters={clusters}",
        f"task.distributions=permuted:{clusters}",
        *(() if clusters == 2 else ("task.partition=linear",)),
    )
    for clusters in (2, 4)
}


def play(setting: str, seed: int) -> Figures:
    """One run's figures."""
    _, result = run_settings(GRID[setting], seed)
    economy = [line["economy"] for line in result.history if line["economy"]]
    balances = sorted(result.summary["report"]["balances"])
    return {
        "broke": max(one["broke"] for one in economy) / len(balances),
        "gini": economy[-1]["gini"],
        "poorest": balances[0],
        "richest": balances[-1],
        "accuracy": result.personalized_accuracy,
        "purity": result.summary["purity"],
    }


def table(runs: Runs) -> str:
    """Broke at most, Gini, poorest and richest of every setting."""
    rows = []
    for setting in GRID:
        found = list(runs.get(setting, {}).values())
        if found:
            mean = {
                key: fmean(one[key] for one in found) for key in ("gini", "poorest", "richest", "accuracy")
            }
            rows.append(
                [
                    setting,
                    f"{100 * max(one['broke'] for one in found):.0f} %",
                    f"{mean['gini']:.2f}",
                    f"{mean['poorest']:.0f} … {mean['richest']:.0f}",
                    f"{100 * mean['accuracy']:.1f}",
                    str(len(found)),
                ]
            )
    return markdown_table(["", "broke at most", "Gini", "tokens at the end", "accuracy", "seeds"], rows)


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, 1, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/long_runs.py"), table(runs))


if __name__ == "__main__":
    main()
