"""Runs of a study: each one's figures are kept as soon as it is finished, and never played again.

A run is named by its setting and its seed. Runs are played side by side in processes of their own, with one
thread each; the figures do not depend on how many there are.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ipfl.config.run_config import Config
from ipfl.engines.local_engine import local_engine
from ipfl.play.run import run
from ipfl.reproduce.results_file import compact_json, is_same_code
from ipfl.results.result import Result
from ipfl.study.comparison import prepare
from ipfl.system.files import write_text
from ipfl.system.source import source_commit
from ipfl.training.task import Task

HERE = Path(__file__).resolve().parent
Figures = dict[str, Any]
Runs = dict[str, dict[str, Figures]]
"""Setting → seed → figures of the run."""
PlayRun = Callable[[str, int], Figures]
EMNIST = (
    "task.dataset=emnist",
    "task.distributions=halves",
    "task.samples=160",
    "task.model=small_cnn",
    "rounds=24",
    "train.lr=0.1",
    "train.momentum=0.9",
)
"""The letters as in the paper's tables at scale cpu, with what tuning chose for IP-FL there."""


def parse_arguments(description: str | None, seeds: int) -> argparse.Namespace:
    """`--seeds N` (from 0 on), `--first S` and `--processes P`, as every study has them."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=0, help=f"how many; 0: only write the tables; try {seeds}"
    )
    parser.add_argument("--first", type=int, default=0, help="the first one; tuning uses seeds from 100 on")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at the same time")
    parser.add_argument("--only", nargs="*", default=[], help="only settings whose name has all of these")
    parser.add_argument("--replay", action="store_true", help="play runs of other code again")
    return parser.parse_args()


def play_study(
    description: str | None, seeds: int, path: Path, settings: Iterable[str], play: PlayRun
) -> Runs:
    """Plays what the command line asks for and is not in the file yet; returns all that is in it then.

    Args:
        description: Of the study, for `--help`.
        seeds: How many to recommend.
        path: Of the results.
        settings: All of the study.
        play: Plays one of them.
    """
    given = parse_arguments(description, seeds)
    wanted = [setting for setting in settings if all(part in setting for part in given.only)]
    seeds_wanted = range(given.first, given.first + given.seeds)
    return play_missing(path, wanted, seeds_wanted, play, given.processes, replay=given.replay)


def run_settings(settings: Sequence[str], seed: int) -> tuple[Task, Result]:
    """The default run with these settings, evaluated once at its end unless they say when, in this process.

    Also the data that it was about.
    """
    config = Config.load(None, [f"evaluate.every={10**6}", *settings, f"seed={seed}"])
    method = config.build_method()
    task = prepare(config, [method], seed)
    return task, run(task, method, config, engine=local_engine(workers=0))


def read_runs(path: Path) -> Runs:
    """What was run so far."""
    return json.loads(path.read_text())["runs"] if path.exists() else {}


def play_missing(
    path: Path,
    settings: Sequence[str],
    seeds: Sequence[int],
    play: PlayRun,
    processes: int,
    *,
    replay: bool = False,
) -> Runs:
    """Plays what is not in the file yet, seed by seed, and returns all that is in it then.

    Args:
        path: Of the results.
        settings: Which.
        seeds: With which seeds.
        play: Plays a run.
        processes: So many at the same time.
        replay: Whether runs of a commit whose code decides otherwise about results are missing as well.
    """
    runs = read_runs(path)

    def is_there(setting: str, seed: int) -> bool:
        found = runs.get(setting, {}).get(str(seed))
        return found is not None and (not replay or is_same_code(found["commit"]))

    missing = [(setting, seed) for seed in seeds for setting in settings if not is_there(setting, seed)]
    if not missing:
        return runs
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(min(processes, len(missing))) as pool:
        jobs = ((play, setting, seed) for setting, seed in missing)
        for setting, seed, figures in pool.imap_unordered(_play, jobs):
            runs.setdefault(setting, {})[str(seed)] = {**figures, "commit": source_commit()}
            write_text(path, compact_json({"runs": {name: runs[name] for name in sorted(runs)}}))
            print(setting, seed, figures, flush=True)
    return runs


def _play(job: tuple[PlayRun, str, int]) -> tuple[str, int, Figures]:
    import torch

    torch.set_num_threads(1)
    play, setting, seed = job
    return setting, seed, play(setting, seed)


def write_between(document: Path, marks: tuple[str, str], text: str) -> None:
    """Replaces the part of a document between two marks, which stay."""
    before, rest = document.read_text().split(marks[0])
    write_text(document, f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{rest.split(marks[1])[1]}")


def marks(script: str) -> tuple[str, str]:
    """What stands around a table that a script makes."""
    return f"<!-- made by {script}; do not edit -->", f"<!-- end of {script} -->"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
