"""What attackers get, and what they cost: every kind, without a defence and with the recommended one.

    python experiments/adversaries.py --seeds 5

Runs `adversaries.toml` and keeps each run's figures in `results/adversaries.json` as soon as it is finished;
what is there already is not run again. The table in `docs/adversaries.md` is made from it, never typed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from ipfl.core import HasMarket
from ipfl.core.files import write_json, write_text
from ipfl.engines.local import local_engine
from ipfl.runs.attack_report import attack_report
from ipfl.runs.comparison import prepare
from ipfl.runs.config import Config
from ipfl.runs.run import run as run_method
from ipfl.stress.attackers import Adversary
from ipfl.stress.settings import AdversaryConfig, AttackKind

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "adversaries.json"
DOCUMENT = HERE.parent / "docs" / "adversaries.md"
BEGIN, END = "<!-- made by experiments/adversaries.py; do not edit -->", "<!-- end -->"

CLEAN = "nobody"
KINDS = (CLEAN, *get_args(AttackKind))
DEFENCES: dict[str, tuple[str, ...]] = {
    "none": (),
    "robust": ("method.robust=true", "method.beta_psi=2"),
}


def play(kind: str, defence: str, seed: int) -> dict[str, Any]:
    """One run's figures. Without attackers: those of the same clients when they are honest."""
    chosen = {} if kind == CLEAN else {"adversary.kind": kind}
    config = Config.load(HERE / "adversaries.toml", DEFENCES[defence], {"seed": seed, **chosen})
    method = config.build_method()
    task = prepare(config, [method], seed)
    adversary = Adversary.make(config.adversary, task.data, seed)
    assert adversary is not None
    assert isinstance(method, HasMarket)
    if kind == CLEAN:
        config = config.model_copy(update={"adversary": AdversaryConfig()})
    result = run_method(task, method, config, engine=local_engine(workers=0))
    opening = method.opening_transfers(result.state)
    report = attack_report(adversary, opening, result.history, result.last)
    seats = [share for share in report["performance_share"] if share is not None]
    return {
        "tokens": report["tokens"],
        "fell_out": report["fell_out"],
        "seats_at_first": fmean(seats[: len(seats) // 2]),
        "seats_at_last": fmean(seats[len(seats) // 2 :]),
        "honest_accuracy": report["honest_accuracy"],
        "purity": result.summary["purity"],
    }


def behind(run: dict[str, Any]) -> float:
    """By how many tokens the median attacker ends below the median honest client."""
    return float(run["tokens"]["honest"]["median"] - run["tokens"]["attackers"]["median"])


def row(kind: str, defence: str, found: dict[str, Any]) -> str | None:
    """A line of the table; None without runs."""
    clean = found[f"{CLEAN}/none"]
    seeds = [seed for seed in found.get(f"{kind}/{defence}", {}) if seed in clean]
    if not seeds:
        return None
    runs = [found[f"{kind}/{defence}"][seed] for seed in seeds]
    lost = [
        100 * (clean[seed]["honest_accuracy"]["mean"] - run["honest_accuracy"]["mean"])
        for seed, run in zip(seeds, runs, strict=True)
    ]
    out = [run["fell_out"] for run in runs if run["fell_out"] is not None]
    cells = [
        kind.replace("_", " "),
        defence,
        f"{sum(behind(run) > 0 for run in runs)} of {len(runs)}",
        f"{-fmean(map(behind, runs)):+.0f}",
        f"{fmean(run['tokens']['attackers']['net'] for run in runs):+.0f}",
        f"{100 * fmean(run['honest_accuracy']['mean'] for run in runs):.1f}",
        f"{fmean(lost):+.1f} ({max(lost):+.1f})",
        " → ".join(
            f"{100 * fmean(run[part] for run in runs):.0f}" for part in ("seats_at_first", "seats_at_last")
        ),
        f"{len(out)} of {len(runs)}" + (f", round {fmean(out):.0f}" if out else ""),
    ]
    return "| " + " | ".join(cells) + " |"


def table(content: dict[str, Any]) -> str:
    """All that was run, as the part of the document between the marks."""
    head = [
        "attack",
        "defence",
        "seeds below the honest median",
        "tokens against it",
        "net earned",
        "honest accuracy",
        "points lost (worst seed)",
        "% of N_p, first → second half",
        "fell out",
    ]
    lines = [BEGIN, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    pairs = [(kind, defence) for kind in KINDS for defence in DEFENCES]
    lines += [line for kind, defence in pairs if (line := row(kind, defence, content["runs"]))]
    return "\n".join([*lines, "", END])


def main() -> None:
    """Plays what is missing, and writes the table of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=0, help="seeds from 0 on; 0: only write the table")
    content: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    for seed in range(parser.parse_args().seeds):
        for kind in KINDS:
            for defence in DEFENCES:
                done = content["runs"].setdefault(f"{kind}/{defence}", {})
                if str(seed) not in done:
                    done[str(seed)] = play(kind, defence, seed)
                    write_json(RESULTS, {"defences": DEFENCES, **content})
                    print(kind, defence, seed, done[str(seed)], flush=True)
    before, rest = DOCUMENT.read_text().split(BEGIN)
    write_text(DOCUMENT, before + table(content) + rest.split(END)[1])


if __name__ == "__main__":
    main()
