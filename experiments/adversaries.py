"""What attackers get, and what they cost: every kind, without a defence and with the guards.

    python experiments/adversaries.py --seeds 10

Runs `adversaries.toml`. The table in `docs/adversaries.md` is made from the results, never typed.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any, get_args

from grid import HERE, Figures, Runs, markdown_table, marks, play_study, write_between
from ipfl.core import HasMarket
from ipfl.engines.local import local_engine
from ipfl.runs.attack_report import attack_report
from ipfl.runs.comparison import prepare
from ipfl.runs.config import Config
from ipfl.runs.run import run as run_method
from ipfl.stress.attackers import Adversary
from ipfl.stress.settings import AdversaryConfig, AttackKind

RESULTS = HERE / "results" / "adversaries.json"
DOCUMENT = HERE.parent / "docs" / "adversaries.md"

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


def row(attack: str, defence: str, runs: Runs) -> list[str] | None:
    """A line of the table; None without runs. Lost and gained: against the same defence, nobody attacking."""
    clean = runs.get(f"{CLEAN}/{defence}", {})
    seeds = [seed for seed in runs.get(f"{attack}/{defence}", {}) if seed in clean]
    if not seeds:
        return None
    found = [runs[f"{attack}/{defence}"][seed] for seed in seeds]
    lost = [
        100 * (clean[seed]["honest_accuracy"]["mean"] - run["honest_accuracy"]["mean"])
        for seed, run in zip(seeds, found, strict=True)
    ]
    own = [
        100 * (run["own_accuracy"] - clean[seed]["own_accuracy"])
        for seed, run in zip(seeds, found, strict=True)
    ]
    return [
        attack,
        defence,
        f"{sum(behind(run) > 0 for run in found)} of {len(found)}",
        f"{-fmean(map(behind, found)):+.0f}",
        f"{fmean(run['tokens']['attackers']['net'] for run in found):+.0f}",
        f"{100 * fmean(run['honest_accuracy']['mean'] for run in found):.1f}",
        f"{fmean(lost):+.1f} ({max(lost):+.1f})",
        f"{fmean(own):+.1f}",
        " → ".join(
            f"{100 * fmean(run[part] for run in found):.0f}" for part in ("seats_at_first", "seats_at_last")
        ),
    ]


def table(runs: Runs) -> str:
    """All that was run."""
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
    return markdown_table(head, [line for pair in pairs if (line := row(*pair, runs))])


def main() -> None:
    """Plays what is missing, and writes the table of all."""
    runs = play_study(__doc__, 10, RESULTS, GRID, play)
    write_between(DOCUMENT, marks("experiments/adversaries.py"), table(runs))


if __name__ == "__main__":
    main()
