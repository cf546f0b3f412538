"""The gain of attackers and the cost to others: every kind, without a defence and with the guards.

    python experiments/adversaries.py --seeds 10
    python experiments/adversaries.py --first 200 --seeds 30 --only /guards

The default task with 20 % attackers. The tables in `docs/results.md` are made from the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from grid import Figures, Runs, markdown_table, mean_with_interval, play_study, write_table
from ipfl.config.run_config import AdversaryConfig, AttackKind
from ipfl.play.attack_report import attack_report
from ipfl.results.result import Result
from ipfl.stress.attackers import Adversary
from ipfl.training.task import Task

REPORTED, FURTHER = range(10), range(200, 230)
"""Seeds of the two tables. Nothing was chosen by the second."""

SHARE = 0.2
CLEAN = "nobody"
ATTACKS: dict[str, tuple[str, ...]] = {
    **{kind.replace("_", " "): (f"adversary.kind={kind}",) for kind in get_args(AttackKind)},
    "sybil, noise of a quarter": ("adversary.kind=sybil", "adversary.strength=0.25"),
    "liar, factor 2": ("adversary.kind=liar", "adversary.strength=2"),
    # Just below what is too long to count.
    "scaled, 2.5 times": ("adversary.kind=scaled", "adversary.strength=2.5"),
    "sign flip, 2.5 times": ("adversary.kind=sign_flip", "adversary.strength=2.5"),
}
DEFENCES: dict[str, tuple[str, ...]] = {"none": ("method.guards.rule=paper",), "guards": ()}


def settings_of(attack: str, *defence: str) -> tuple[str, ...]:
    """The settings of runs in which somebody attacks, or nobody."""
    attacking = () if attack.startswith(CLEAN) else (f"adversary.share={SHARE}", *ATTACKS[attack])
    return ("rounds=30", *attacking, *defence)


GRID = {
    f"{attack}/{defence}": settings_of(attack, *settings)
    for attack in (CLEAN, *ATTACKS)
    for defence, settings in DEFENCES.items()
}


def figures_of(result: Result, task: Task) -> Figures:
    """The numbers that are kept of a run; if nobody attacks, of the same clients when they are honest."""
    given = AdversaryConfig.of(result.summary["config"]["adversary"])
    attackers = given if given.share else AdversaryConfig(share=SHARE)
    adversary = Adversary.make(attackers, task.data, result.summary["seed"])
    assert adversary is not None
    assert result.last is not None
    report = attack_report(adversary, result.opening, result.history, result.last)
    seats = [share for share in report["performance_share"] if share is not None]
    return {
        "tokens": report["tokens"],
        "seats_at_first": fmean(seats[: len(seats) // 2]),
        "seats_at_last": fmean(seats[len(seats) // 2 :]),
        "honest_accuracy": report["honest_accuracy"],
        "own_accuracy": fmean(result.last.personalized[client] for client in adversary.attackers),
        "purity": result.summary["purity"],
    }


def behind(run: Figures) -> float:
    """By how many tokens the median attacker ends below the median honest client."""
    return float(run["tokens"]["honest"]["median"] - run["tokens"]["attackers"]["median"])


@dataclass(frozen=True)
class Attacked:
    """Runs with one attack and defence, and by seed what differs from the runs in which nobody attacks."""

    runs: list[Figures]
    lost: list[float]
    """Points that the honest clients lose."""
    own: list[float]
    """Points that the attackers gain."""
    tokens: list[float]
    """Tokens that attackers earn more than when they are honest."""

    @property
    def below_median(self) -> str:
        """In how many runs the median attacker ends below the median honest client."""
        return f"{sum(behind(run) > 0 for run in self.runs)} of {len(self.runs)}"


def attacked(attack: str, defence: str, runs: Runs, seeds: range) -> Attacked | None:
    """The runs with an attack and these seeds; None if there are none."""
    before, after = runs.get(f"{CLEAN}/{defence}", {}), runs.get(f"{attack}/{defence}", {})
    pairs = [(before[seed], after[seed]) for seed in map(str, seeds) if seed in before and seed in after]
    if not pairs:
        return None

    def gain(figure: Callable[[Figures], float]) -> list[float]:
        return [figure(run) - figure(clean) for clean, run in pairs]

    return Attacked(
        [run for _, run in pairs],
        lost=gain(lambda run: -100 * run["honest_accuracy"]["mean"]),
        own=gain(lambda run: 100 * run["own_accuracy"]),
        tokens=gain(lambda run: run["tokens"]["attackers"]["net"]),
    )


def table(runs: Runs) -> str:
    """Both defences, the reported seeds."""
    rows = []
    for attack in (CLEAN, *ATTACKS):
        for defence in DEFENCES:
            if (found := attacked(attack, defence, runs, REPORTED)) is None:
                continue
            seats = [fmean(run[f"seats_at_{part}"] for run in found.runs) for part in ("first", "last")]
            rows.append(
                [
                    *(attack, defence, found.below_median),
                    f"{-fmean(map(behind, found.runs)):+.0f}",
                    f"{fmean(run['tokens']['attackers']['net'] for run in found.runs):+.0f}",
                    f"{100 * fmean(run['honest_accuracy']['mean'] for run in found.runs):.1f}",
                    f"{fmean(found.lost):+.1f} ({max(found.lost):+.1f})",
                    f"{fmean(found.own):+.1f}",
                    " → ".join(f"{100 * share:.0f}" for share in seats),
                ]
            )
    head = ["attack", "defence", "seeds below the honest median", "tokens against it", "net earned"]
    head += ["honest accuracy", "points lost (worst seed)", "attackers' own gain"]
    return markdown_table([*head, "% of N_p, first → second half"], rows)


def table_of_further_seeds(runs: Runs) -> str:
    """The further seeds, with guards: means with their intervals."""
    found = {attack: attacked(attack, "guards", runs, FURTHER) for attack in ATTACKS}
    rows = [
        [
            *(attack, one.below_median, mean_with_interval(one.tokens, 0), mean_with_interval(one.lost)),
            *(f"{max(one.lost):+.1f}", mean_with_interval(one.own)),
        ]
        for attack, one in found.items()
        if one is not None
    ]
    head = ["attack, with guards", "seeds below the honest median", "tokens earned by attacking"]
    return markdown_table([*head, "points lost", "worst seed", "attackers' own gain"], rows)


def main() -> None:
    """Plays what is missing, and writes both tables."""
    runs = play_study(__doc__, "adversaries", GRID, figures_of)
    write_table("experiments/adversaries.py", table(runs))
    write_table("experiments/adversaries.py, further seeds", table_of_further_seeds(runs))


if __name__ == "__main__":
    main()
