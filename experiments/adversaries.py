"""What attackers get, and what they cost: every kind, without a defence and with the guards.

    python experiments/adversaries.py --seeds 10
    python experiments/adversaries.py --first 200 --seeds 30 --only /guards

Runs `adversaries.toml`. The tables in `docs/adversaries.md` are made from the results, never typed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, write_between
from ipfl.config.run_config import Config
from ipfl.config.stress_section import AdversaryConfig, AttackKind
from ipfl.core import HasMarket
from ipfl.engines.local_engine import local_engine
from ipfl.play.attack_report import attack_report
from ipfl.play.run import run as run_method
from ipfl.reproduce.paper_tables import with_interval
from ipfl.stress.attackers import Adversary
from ipfl.study.comparison import prepare
from ipfl.study.statistics import interval

RESULTS = HERE / "results" / "adversaries.json"
DOCUMENT = HERE.parent / "docs" / "adversaries.md"
REPORTED, FURTHER = range(10), range(200, 230)
"""Seeds of the two tables. Nothing was chosen by the second."""

CLEAN = "nobody"
ATTACKS: dict[str, tuple[str, ...]] = {
    **{kind.replace("_", " "): (f"adversary.kind={kind}",) for kind in get_args(AttackKind)},
    "sybil, noise of a quarter": ("adversary.kind=sybil", "adversary.strength=0.25"),
    "liar, factor 2": ("adversary.kind=liar", "adversary.strength=2"),
    # Just below what is too long to count.
    "scaled, 2.5 times": ("adversary.kind=scaled", "adversary.strength=2.5"),
    "sign flip, 2.5 times": ("adversary.kind=sign_flip", "adversary.strength=2.5"),
}
DEFENCES: dict[str, tuple[str, ...]] = {"none": ("method.robust=false",), "guards": ()}
GRID = {
    f"{attack}/{defence}": (*settings, *DEFENCES[defence])
    for attack, settings in {CLEAN: (), **ATTACKS}.items()
    for defence in DEFENCES
}


def play(setting: str, seed: int) -> Figures:
    """One run's figures."""
    return play_settings(GRID[setting], seed, clean=setting.startswith(CLEAN))


def play_settings(settings: tuple[str, ...], seed: int, *, clean: bool) -> Figures:
    """One run's figures. Without attackers (`clean`): those of the same clients when they are honest."""
    config = Config.load(HERE / "adversaries.toml", settings, {"seed": seed})
    method = config.build_method()
    task = prepare(config, [method], seed)
    adversary = Adversary.make(config.adversary, task.data, seed)
    assert adversary is not None
    assert isinstance(method, HasMarket)
    if clean:
        config = config.model_copy(update={"adversary": AdversaryConfig()})
    result = run_method(task, method, config, engine=local_engine(workers=0))
    assert result.last is not None
    opening = method.opening_transfers(result.state)
    report = attack_report(adversary, opening, result.history, result.last)
    seats = [share for share in report["performance_share"] if share is not None]
    own = [result.last.personalized[client] for client in adversary.attackers]
    return {
        "tokens": report["tokens"],
        "fell_out": report["fell_out"],
        "seats_at_first": fmean(seats[: len(seats) // 2]),
        "seats_at_last": fmean(seats[len(seats) // 2 :]),
        "honest_accuracy": report["honest_accuracy"],
        "own_accuracy": fmean(own),
        "purity": result.summary["purity"],
    }


def behind(run: dict[str, Any]) -> float:
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
    """What attackers earn more than when they are honest."""


def attacked(attack: str, defence: str, runs: Runs, seeds: Iterable[int]) -> Attacked | None:
    """What was run of an attack with these seeds; None if nothing."""
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
    head = [
        "attack",
        "defence",
        "seeds below the honest median",
        "tokens against it",
        "net earned",
        "honest accuracy",
        "points lost (worst seed)",
        "attackers' own gain",
        "% of N_p, first → second half",
    ]
    pairs = [(attack, defence) for attack in (CLEAN, *ATTACKS) for defence in DEFENCES]
    found = {pair: attacked(*pair, runs, REPORTED) for pair in pairs}
    return markdown_table(head, [[*pair, *row(one)] for pair, one in found.items() if one])


def row(found: Attacked) -> list[str]:
    """Figures of one attack and defence."""
    seats = ("seats_at_first", "seats_at_last")
    return [
        below_median(found),
        f"{-fmean(map(behind, found.runs)):+.0f}",
        f"{fmean(run['tokens']['attackers']['net'] for run in found.runs):+.0f}",
        f"{100 * fmean(run['honest_accuracy']['mean'] for run in found.runs):.1f}",
        f"{fmean(found.lost):+.1f} ({max(found.lost):+.1f})",
        f"{fmean(found.own):+.1f}",
        " → ".join(f"{100 * fmean(run[part] for run in found.runs):.0f}" for part in seats),
    ]


def table_of_further_seeds(runs: Runs) -> str:
    """What single seeds leave open, with guards: means with their intervals."""
    head = [
        "attack, with guards",
        "seeds below the honest median",
        "tokens earned by attacking",
        "points lost",
        "worst seed",
        "attackers' own gain",
    ]
    found = {attack: attacked(attack, "guards", runs, FURTHER) for attack in ATTACKS}
    return markdown_table(head, [[attack, *row_with_intervals(one)] for attack, one in found.items() if one])


def row_with_intervals(found: Attacked) -> list[str]:
    """Figures of one attack, with guards."""
    return [
        below_median(found),
        mean_with_interval(found.tokens, 0),
        mean_with_interval(found.lost),
        f"{max(found.lost):+.1f}",
        mean_with_interval(found.own),
    ]


def below_median(found: Attacked) -> str:
    """In how many runs the median attacker ends below the median honest client."""
    return f"{sum(behind(run) > 0 for run in found.runs)} of {len(found.runs)}"


def mean_with_interval(differences: Sequence[float], digits: int = 1) -> str:
    """The mean over the seeds, and where it lies in 95 of 100 cases."""
    return with_interval(fmean(differences), interval(differences), digits)


def main() -> None:
    """Plays what is missing, and writes both tables."""
    runs = play_study(__doc__, 10, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/adversaries.py"), table(runs))
    further = marks("experiments/adversaries.py, further seeds")
    write_between(DOCUMENT, further, table_of_further_seeds(runs))


if __name__ == "__main__":
    main()
