"""What each guard of the robust market does: every attack with one of the guards left out in turn.

    python experiments/guards.py --seeds 3

Honest clients' accuracy, and by how many tokens the median attacker ends above the median honest client.
Beside the attacks: nobody, and nobody with graded label noise (0 to 60 % wrong labels), where a guard must
not cost anything. The table is in `docs/adversaries.md`.
"""

from __future__ import annotations

from statistics import fmean
from typing import get_args

import adversaries
from grid import HERE, Figures, Runs, markdown_table, marks, play_study, write_between
from ipfl.methods.ipfl_plus.ipfl_settings import GuardName

RESULTS = HERE / "results" / "guards.json"
GUARDS: tuple[GuardName, ...] = get_args(GuardName)
CASES: dict[str, tuple[str, ...]] = {
    adversaries.CLEAN: (),
    f"{adversaries.CLEAN}, wrong labels": ("task.label_noise=[0, 0.2, 0.4, 0.6]",),
    **{
        kind: adversaries.ATTACKS[kind]
        for kind in (
            "sign flip",
            "sign flip, 2.5 times",
            "label flip",
            "scaled",
            "scaled, 2.5 times",
            "liar",
            "colluder",
            "sybil, noise of a quarter",
        )
    },
}
DEFENCES: dict[str, tuple[str, ...]] = {
    "all": (),
    "none": ("method.robust=false",),
    **{
        f"no {left_out}": (f"method.robust={[guard for guard in GUARDS if guard != left_out]}",)
        for left_out in GUARDS
    },
}
GRID = {f"{case} / {defence}": (*CASES[case], *DEFENCES[defence]) for case in CASES for defence in DEFENCES}


def play(setting: str, seed: int) -> Figures:
    """One run's figures."""
    figures = adversaries.play_settings(GRID[setting], seed, clean=setting.startswith(adversaries.CLEAN))
    return {"accuracy": figures["honest_accuracy"]["mean"], "ahead": -adversaries.behind(figures)}


def table(runs: Runs) -> str:
    """A row per attack, a column per guard left out: accuracy, and the attackers' tokens."""
    rows = []
    for case in CASES:
        found = [list(runs.get(f"{case} / {defence}", {}).values()) for defence in DEFENCES]
        if all(found):
            rows.append([case, *map(_cell, found), str(len(found[0]))])
    return (
        markdown_table(["", *DEFENCES, "seeds"], rows)
        if rows
        else "No runs of the present rules are committed yet."
    )


def _cell(found: list[Figures]) -> str:
    return (
        f"{100 * fmean(one['accuracy'] for one in found):.1f} ({fmean(one['ahead'] for one in found):+.0f})"
    )


def main() -> None:
    """Plays what is missing, and writes the table."""
    runs = play_study(__doc__, 3, RESULTS, GRID, play)
    write_between(adversaries.DOCUMENT, marks("experiments/guards.py"), table(runs))


if __name__ == "__main__":
    main()
