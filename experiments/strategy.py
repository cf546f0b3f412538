"""Clients that choose whether to train when it costs, with tokens and without, the same informed bids.

    python experiments/strategy.py --seeds 5

Every client has a cost of training c and a value v of a price in tokens, and picks in every round among
training, three ways to pretend, buying only, and abstaining (docs/market.md). Honest share and accuracy
over c and v.
"""

from __future__ import annotations

from statistics import fmean

from grid import EMNIST, Figures, Runs, markdown_table, play_study, reported, write_table
from ipfl.results.result import Result
from ipfl.training.task import Task

COSTS, VALUES = (0.0, 0.25, 0.5, 1.0, 2.0), (0.0, 0.5, 1.0, 2.0)
WORTH = 1.0
"""Of a price in tokens, where tokens do not count: they are worth nothing there."""
DATA = {"digits": (), "EMNIST letters": EMNIST}
RULES = {"tokens": (), "no tokens": ("method.payment.rule=none",), "printed rules": ("method.name=ipfl",)}


def choosing(data: str, rule: str, cost: float, value: float) -> str:
    """The name of the runs with clients that choose."""
    return f"{data} / {rule} / c = {cost:g}, v = {value:g}"


GRID = {f"{data} / all honest": task for data, task in DATA.items()} | {
    choosing(data, rule, cost, value): (
        *(*task, *market),
        *(f"strategy.cost={cost}", f"strategy.value={value}"),
    )
    for data, task in DATA.items()
    for rule, market in RULES.items()
    for cost in COSTS
    for value in (VALUES if rule == "tokens" else (WORTH,))
}


def figures_of(result: Result, task: Task) -> Figures:
    """The numbers that are kept of a run."""
    strategy = result.summary["strategy"]
    return {
        "accuracy": result.personalized_accuracy,
        "honest_share": 1.0 if strategy is None else strategy["honest_share"],
        "shares": None if strategy is None else strategy["shares"],
    }


def cell(runs: Runs, setting: str) -> str:
    """`96 %, 81.1`: the honest share, and the accuracy."""
    found = reported(runs, setting)
    if not found:
        return "–"
    honest, accuracy = (100 * fmean(run[key] for run in found) for key in ("honest_share", "accuracy"))
    return f"{honest:.0f} %, {accuracy:.1f}"


def main() -> None:
    """Plays what is missing, and writes the table: a row for every cost, a column for every value."""
    runs, rows = play_study(__doc__, "strategy", GRID, figures_of), []
    for data in DATA:
        rows.append([data, "all honest", "–", *[cell(runs, f"{data} / all honest")] * len(VALUES)])
        for rule in RULES:
            for cost in COSTS:
                cells = [cell(runs, choosing(data, rule, cost, value)) for value in VALUES]
                rows.append([data, rule, f"{cost:g}", *cells])
    head = ["data", "rule", "c", *(f"v = {value:g}" for value in VALUES)]
    write_table("experiments/strategy.py", markdown_table(head, rows))


if __name__ == "__main__":
    main()
