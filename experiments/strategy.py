"""Who trains when it costs: clients that choose, with tokens and without, the same informed bids.

    python experiments/strategy.py --seeds 5

Every client has a cost of training c and a value v of a price in tokens, and picks in every round among
training, three ways to pretend, buying only, and abstaining (docs/market.md). Honest share and accuracy
over c and v; the figure shows the honest share over the rounds.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from grid import EMNIST, HERE, Figures, Runs, markdown_table, marks, play_study, run_settings, write_between

RESULTS = HERE / "results" / "strategy.json"
DOCUMENT = HERE.parent / "docs" / "market.md"
FIGURE = HERE.parent / "docs" / "img" / "who-trains-when-it-costs.png"
COSTS, VALUES = (0.0, 0.25, 0.5, 1.0, 2.0), (0.0, 0.5, 1.0, 2.0)
WORTH = 1.0
"""Of a price in tokens, where tokens do not count (they are worth nothing there) or others are drawn."""
DATA = {"digits": (), "EMNIST letters": EMNIST}
RULES = {"tokens": (), "no tokens": ("method.tokens=false",), "printed rules": ("method.preset=paper",)}


def grid() -> dict[str, tuple[str, ...]]:
    """Settings by name: data / rule / cost and value; without cost everyone is honest."""
    found = {}
    for data, task in DATA.items():
        found[f"{data} / all honest"] = task
        for rule, market in RULES.items():
            values = VALUES if rule == "tokens" else (WORTH,)
            for cost in COSTS:
                for value in values:
                    choice = (f"strategy.cost={cost}", f"strategy.value={value}")
                    found[f"{data} / {rule} / c = {cost:g}, v = {value:g}"] = (*task, *market, *choice)
    return found


GRID = grid()


def play(setting: str, seed: int) -> Figures:
    """One run's figures."""
    _, result = run_settings([*GRID[setting], "method.adapt=0"], seed)
    strategy = result.summary["strategy"]
    return {
        "accuracy": result.personalized_accuracy,
        "honest_share": 1.0 if strategy is None else strategy["honest_share"],
        "shares": None if strategy is None else strategy["shares"],
        "accuracies": [
            [round, fmean(evaluation.personalized.values())]
            for round, evaluation in result.evaluations.items()
        ],
    }


def table(runs: Runs) -> str:
    """Honest share and accuracy: a row for every cost, a column for every value."""
    rows = []
    for data in DATA:
        honest = _cell(runs.get(f"{data} / all honest", {}))
        rows.append([data, "all honest", "–", *[honest] * len(VALUES)])
        for rule in RULES:
            for cost in COSTS:
                names = (f"{data} / {rule} / c = {cost:g}, v = {value:g}" for value in VALUES)
                rows.append([data, rule, f"{cost:g}", *(_cell(runs.get(name, {})) for name in names)])
    shown = [row for row in rows if any(cell != "–" for cell in row[3:])]
    return markdown_table(["data", "rule", "c", *(f"v = {value:g}" for value in VALUES)], shown)


def _cell(seeds: dict[str, Figures]) -> str:
    """`96 %, 81.1`: the honest share, and the accuracy."""
    if not seeds:
        return "–"
    honest, accuracy = (
        100 * fmean(run[key] for run in seeds.values()) for key in ("honest_share", "accuracy")
    )
    return f"{honest:.0f} %, {accuracy:.1f}"


def draw(runs: Runs, path: Path) -> None:
    """Honest share over the rounds, for every cost, with tokens and without; a row for each data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shape = len(DATA), len(RULES)
    figure, axes = plt.subplots(*shape, figsize=(10, 5.6), sharex="row", sharey=True, layout="constrained")
    colours = plt.get_cmap("viridis")([0.05, 0.28, 0.5, 0.72, 0.92])
    for row, data in zip(axes, DATA, strict=True):
        for axis, rule in zip(row, RULES, strict=True):
            for colour, cost in zip(colours, COSTS, strict=True):
                found = list(runs.get(f"{data} / {rule} / c = {cost:g}, v = {WORTH:g}", {}).values())
                if found:
                    rounds = [round + 1 for round, *_ in found[0]["shares"]]
                    honest = [100 * fmean(run["shares"][i][1] for run in found) for i in range(len(rounds))]
                    axis.plot(rounds, honest, color=colour, label=f"c = {cost:g}")
            axis.set(title=f"{data}: {rule}", ylim=(0, 100))
            axis.grid(alpha=0.3)
        row[0].set_ylabel("clients that\ntrain honestly, %")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), title="cost of\ntraining", loc="outside right center"
    )
    figure.suptitle("Who trains when it costs (a price in tokens is worth 1)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Plays what is missing, and writes the table and the figure."""
    runs = play_study(__doc__, 5, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/strategy.py"), table(runs))
    draw(runs, FIGURE)


if __name__ == "__main__":
    main()
