"""Studies beside the paper's tables: settings by name, played as one list of runs, some figures kept of each.

A run is known by the name of its settings and its seed; what is in the file already is not played again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ipfl.config.whole_config import Config
from ipfl.reproduce.paper_tables import markdown_table as markdown_table  # for the studies
from ipfl.reproduce.paper_tables import with_interval
from ipfl.reproduce.results_file import is_same_code, write_numbers
from ipfl.results.result import Result
from ipfl.study.run_list import RunList
from ipfl.study.run_pool import local_pool
from ipfl.study.statistics import interval
from ipfl.study.study_run import RunOutcome, StudyRun, TaskCache
from ipfl.system.files import write_text
from ipfl.system.plugins import source_commit
from ipfl.training.task import Task

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
Figures = dict[str, Any]
Runs = dict[str, dict[str, Figures]]
"""Settings → seed → figures of the run."""
Grid = Mapping[str, Sequence[str]]
"""Settings by name, in the form of `--set`."""
EMNIST = (
    *("task.dataset=emnist", "task.distributions=halves", "task.samples=160", "task.model=small_cnn"),
    *("rounds=24", "train.lr=0.1", "train.momentum=0.9"),
)
"""The letters as in the paper's tables at scale cpu, with what tuning chose for IP-FL there."""
FIRST_TUNING_SEED = 100


def play_study(
    description: str | None, name: str, grid: Grid, figures_of: Callable[[Result, Task], Figures]
) -> Runs:
    """Plays what the command line asks for and is not in the file yet; returns all that is in it then.

    Args:
        description: Of the study, for `--help`.
        name: Of the file, in `results/`.
        grid: The settings of all runs. Models are evaluated once, at the end, unless they say when.
        figures_of: What is kept of a run.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=0, help="how many; 0: only write the tables")
    parser.add_argument("--first", type=int, default=0, help="the first one; tuning uses seeds from 100 on")
    parser.add_argument("--workers", type=int, help="runs at the same time; default: one per core")
    parser.add_argument("--only", nargs="*", default=[], help="only settings whose name has all of these")
    parser.add_argument("--replay", action="store_true", help="play runs of other code again")
    given = parser.parse_args()
    path = HERE / "results" / f"{name}.json"
    runs: Runs = json.loads(path.read_text())["runs"] if path.exists() else {}

    def is_there(setting: str, seed: int) -> bool:
        found = runs.get(setting, {}).get(str(seed))
        return found is not None and (not given.replay or is_same_code(found["commit"]))

    missing = []
    for seed in range(given.first, given.first + given.seeds):
        for setting, sets in grid.items():
            if all(part in setting for part in given.only) and not is_there(setting, seed):
                config = Config.load(None, [f"evaluate.every={10**6}", *sets, f"seed={seed}"])
                title = f"{setting}, seed {seed}"
                missing.append(StudyRun(title, setting, config.build_method(), config, title))
    if not missing:
        return runs
    tasks = TaskCache()

    def enter(run: StudyRun, outcome: RunOutcome) -> None:
        if outcome.result is None:
            print(run.title, outcome.failure, flush=True)
            return
        kept = {**figures_of(outcome.result, tasks.get(run.config)), "commit": source_commit()}
        runs.setdefault(run.label, {})[str(run.seed)] = kept
        write_numbers(path, {"runs": dict(sorted(runs.items()))})
        print(run.title, kept, flush=True)

    RunList(missing, enter).play(local_pool(given.workers), tasks)
    return runs


def reported(runs: Runs, setting: str, seeds: range | None = None) -> list[Figures]:
    """Figures of the runs with these seeds; without any: of all that nothing was tuned on."""
    return [
        one
        for seed, one in runs.get(setting, {}).items()
        if (int(seed) < FIRST_TUNING_SEED if seeds is None else int(seed) in seeds)
    ]


def mean_with_interval(differences: Sequence[float], digits: int = 1) -> str:
    """The mean over the seeds, and where it lies in 95 of 100 cases."""
    return with_interval(fmean(differences), interval(differences), digits)


def write_table(script: str, text: str) -> None:
    """Replaces the part of the results between the two marks of a script."""
    path, begin, end = (
        DOCS / "results.md",
        f"<!-- made by {script}; do not edit -->",
        f"<!-- end of {script} -->",
    )
    before, rest = path.read_text().split(begin)
    write_text(path, f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")
