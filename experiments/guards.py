"""The guards of the robust market: every attack with one of the guards left out in turn.

    python experiments/guards.py --seeds 3

Honest clients' accuracy, and by how many tokens the median attacker ends above the median honest client.
Beside the attacks: nobody, and nobody with graded label noise (0 to 60 % wrong labels), where a guard must
not cost anything.
"""

from __future__ import annotations

from statistics import fmean
from typing import get_args

import adversaries
from grid import Figures, Runs, markdown_table, play_study, reported, write_table
from ipfl.methods.ipfl_plus.guards import GuardName
from ipfl.results.result import Result
from ipfl.training.task import Task

GUARDS: tuple[GuardName, ...] = get_args(GuardName)
WRONG_LABELS = f"{adversaries.CLEAN}, wrong labels"
CASES = (
    *(adversaries.CLEAN, WRONG_LABELS, "sign flip", "sign flip, 2.5 times", "label flip", "scaled"),
    *("scaled, 2.5 times", "liar", "colluder", "sybil, noise of a quarter"),
)
DEFENCES: dict[str, str] = {
    "all": "method.guards.rule=all",
    "none": "method.guards.rule=paper",
    **{f"no {guard}": f"method.guards.leave_out={[guard]}" for guard in GUARDS},
}
GRID = {
    f"{case} / {defence}": (
        *adversaries.settings_of(case, guards),
        *(("task.label_noise=[0, 0.2, 0.4, 0.6]",) if case == WRONG_LABELS else ()),
    )
    for case in CASES
    for defence, guards in DEFENCES.items()
}


def figures_of(result: Result, task: Task) -> Figures:
    """The numbers that are kept of a run."""
    figures = adversaries.figures_of(result, task)
    return {"accuracy": figures["honest_accuracy"]["mean"], "ahead": -adversaries.behind(figures)}


def cell(runs: Runs, setting: str) -> str:
    """Accuracy, and the attackers' tokens."""
    found = reported(runs, setting)
    if not found:
        return "–"
    accuracy, ahead = (fmean(one[key] for one in found) for key in ("accuracy", "ahead"))
    return f"{100 * accuracy:.1f} ({ahead:+.0f})"


def main() -> None:
    """Plays what is missing, and writes the table: a row per attack, a column per guard left out."""
    runs = play_study(__doc__, "guards", GRID, figures_of)
    rows = [
        [
            case,
            *(cell(runs, f"{case} / {defence}") for defence in DEFENCES),
            str(len(reported(runs, f"{case} / all"))),
        ]
        for case in CASES
    ]
    write_table("experiments/guards.py", markdown_table(["", *DEFENCES, "seeds"], rows))


if __name__ == "__main__":
    main()
