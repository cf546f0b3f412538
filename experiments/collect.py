"""Turns the runs of a study into what is committed: `results/NAME.json` and the tables of `results.md`.

    python experiments/collect.py runs/digits runs/emnist-halves …

Reads nothing but `summary.json` and `metrics.jsonl` of each run (RUNS/METHOD/seed-S/), and `plan.json`, which
knows the labels that the folders are named by. All runs of a study must be of the same commit and config.
Tables are made, never typed: `results.md` is written anew from all files in `results/`. Rounds are counted
from 0 in `results/`, as in the files of a run, and from 1 in `results.md`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ipfl.runs.file_names import PLAN_FILE
from ipfl.runs.method_labels import folder_names

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

KEPT = (
    "rounds",
    "personalized_accuracy",
    "unseen_accuracy",
    "pma",
    "opt_outs",
    "purity",
    "cluster_accuracy",
    "seconds",
)
"""What is kept of a summary."""


def read_run(folder: Path) -> dict[str, Any]:
    """One run: its figures, and the curves of accuracy and purity over rounds."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "evaluation" in line]
    report = summary["report"]
    return {
        **{name: summary[name] for name in KEPT},
        "gini": report.get("gini"),
        "broke": len(report["broke"]) if "broke" in report else None,
        "contribution_reward_correlation": report.get("contribution_reward_correlation"),
        "evaluated": [line["round"] for line in evaluated],
        "accuracy_curve": [
            round(line["evaluation"]["personalized_accuracy"]["mean"], 4) for line in evaluated
        ],
        "purity_curve": [line["evaluation"]["purity"] for line in evaluated],
    }


def collect(runs: Path) -> dict[str, Any]:
    """All runs of a study by method and seed, with the config, commit and reference that they share."""
    found: dict[str, dict[str, Any]] = {}
    configs: dict[Path, Any] = {}
    commits: dict[Path, Any] = {}
    references: dict[Path, Any] = {}
    plan = json.loads((runs / PLAN_FILE).read_text()) if (runs / PLAN_FILE).exists() else {}
    labels = {name: label for label, name in folder_names(plan.get("methods", ())).items()}
    for path in sorted(runs.glob("*/seed-*/summary.json")):
        summary, folder = json.loads(path.read_text()), path.parent
        configs[folder], commits[folder] = shared_config(summary["config"]), summary["commit"]
        if summary["reference"] is not None:  # the reference itself has none
            references[folder] = summary["reference"]
        seeds = found.setdefault(labels.get(folder.parent.name, folder.parent.name), {})
        seeds[folder.name.removeprefix("seed-")] = read_run(folder)
    if not found:
        raise SystemExit(f"error: {runs} holds no finished runs (METHOD/seed-S/summary.json)")
    return {
        "study": runs.name,
        "commit": the_same("commit", commits),
        "reference": the_same("reference", references),
        "config": the_same("config", configs),
        "methods": found,
    }


def shared_config(config: dict[str, Any]) -> dict[str, Any]:
    """What all runs of a study must have in common."""
    shared = {key: value for key, value in config.items() if key not in ("seed", "method")}
    shared["task"] = {**config["task"], "data_dir": None}  # differs between machines
    shared["clients"] = {**config["clients"], "leave": None}  # nobody leaves the reference
    return shared


def the_same(what: str, values: dict[Path, Any]) -> Any:
    """The value that all runs have; None without runs.

    Raises:
        SystemExit: They differ.
    """
    folders = list(values)
    for folder in folders[1:]:
        if values[folder] != values[folders[0]]:
            raise SystemExit(f"error: {folders[0]} and {folder} differ in their {what}: no study has both")
    return values[folders[0]] if folders else None


def spread(values: list[float], *, unit: float = 100, digits: int = 1) -> str:
    """Mean ± standard deviation over seeds (n − 1 in the denominator); a dash without values."""
    if not values:
        return "–"
    mean = f"{unit * fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {unit * stdev(values):.{digits}f}"


def row(method: str, runs: list[dict[str, Any]]) -> str:
    """A line of the table of a study."""

    def means(name: str) -> list[float]:
        return [run[name]["mean"] for run in runs if run[name]]

    def numbers(name: str) -> list[float]:
        return [run[name] for run in runs if run[name] is not None]

    pure = numbers("purity")
    cells = [
        f"`{method}`",
        str(len(runs)),
        spread(means("personalized_accuracy")),
        spread(means("pma")),
        spread(numbers("opt_outs"), unit=1),
        f"{sum(value >= 0.95 for value in pure)} of {len(pure)}" if pure else "–",
        spread(means("unseen_accuracy")),
        spread(numbers("gini"), unit=1, digits=3),
        spread(numbers("contribution_reward_correlation"), unit=1, digits=2),
    ]
    return "| " + " | ".join(cells) + " |"


def own_and_other(runs: list[dict[str, Any]]) -> str | None:
    """Each cluster model on its own distribution and on the other, where there are two of both."""
    tables = [run["cluster_accuracy"] for run in runs]
    if any(table is None or len(table) != 2 or len(table[0]) != 2 for table in tables):
        return None
    gaps, own, other = [], [], []
    for table in tables:
        straight = table[0][0] + table[1][1] >= table[0][1] + table[1][0]
        pairs = [(table[d][d if straight else 1 - d], table[1 - d][d if straight else 1 - d]) for d in (0, 1)]
        own += [one for one, _ in pairs]
        other += [one for _, one in pairs]
        gaps.append(min(one - two for one, two in pairs))
    return (
        f"Cluster models: {spread(own)} on their own distribution, {spread(other)} on the other; the smaller "
        f"of the two gaps is {100 * min(gaps):.1f} points at worst, {100 * fmean(gaps):.1f} on average."
    )


def first_pure(runs: list[dict[str, Any]]) -> str | None:
    """From which evaluated round on purity stays at 0.95 or more."""
    rounds = []
    for run in runs:
        pure = [value is not None and value >= 0.95 for value in run["purity_curve"]]
        if not pure or not pure[-1]:
            return None
        last_bad = max((place for place, good in enumerate(pure) if not good), default=-1)
        rounds.append(run["evaluated"][last_bad + 1] + 1)
    return f"Purity stays at 0.95 or more from round {max(rounds)} at worst, {fmean(rounds):.0f} on average."


def curve(method: str, runs: list[dict[str, Any]]) -> str:
    """Mean accuracy over seeds at up to ten of the evaluated rounds."""
    rounds = runs[0]["evaluated"]
    step = max(1, -(-len(rounds) // 10))
    places = sorted({*range(step - 1, len(rounds), step), len(rounds) - 1})
    points = [f"{rounds[p] + 1}: {100 * fmean(run['accuracy_curve'][p] for run in runs):.1f}" for p in places]
    return f"- `{method}`: " + ", ".join(points)


def section(study: dict[str, Any]) -> list[str]:
    """The part of `results.md` about one study."""
    source = HERE / f"{study['study']}.toml"
    about = source.read_text().splitlines()[0].lstrip("# ") if source.exists() else ""
    head = [
        "method",
        "seeds",
        "personalized accuracy",
        f"PMA over `{study.get('reference') or 'fedavg'}`",
        "opt-outs",
        "purity ≥ 0.95",
        "unseen",
        "Gini",
        "ψ–reward ρ",
    ]
    lines = [f"## {study['study']}", "", about, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    methods = {name: list(runs.values()) for name, runs in study["methods"].items()}
    lines += [row(name, runs) for name, runs in methods.items()]
    for name, runs in methods.items():
        for remark in (own_and_other(runs), first_pure(runs)):
            if remark:
                lines += ["", f"`{name}`: {remark}"]
    lines += ["", "Mean personalized accuracy after round:", ""]
    lines += [curve(name, runs) for name, runs in methods.items()]
    return [*lines, "", f"Commit {str(study['commit'])[:10]}, config in `results/{study['study']}.json`.", ""]


def main() -> None:
    """Collects the given studies and writes the tables of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, help="folders of `ipfl compare --out`")
    RESULTS.mkdir(exist_ok=True)
    for runs in parser.parse_args().runs:
        study = collect(runs)
        (RESULTS / f"{study['study']}.json").write_text(json.dumps(study, indent=1) + "\n")
    lines = [
        "# What IP-FL does on our tasks",
        "",
        "Made by `experiments/collect.py` from the runs of the configs in this folder; do not edit. Percent, "
        "mean ± standard deviation over seeds (n − 1); PMA and opt-outs against the method that the column "
        "names, on the same data and budget. Rounds are counted from 1. `ipfl:incentive=false` is the "
        "ablation NI. Methods that are not listed were not run; results are of the commit under each table.",
        "",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        study = json.loads(path.read_text())
        if "methods" in study:  # adversaries.json has a document of its own
            lines += section(study)
    (HERE / "results.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
