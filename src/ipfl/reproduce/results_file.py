"""The numbers of runs as they are committed: `results/NAME/SCALE.json`, and the code they were made with."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ipfl.config.sections import one_line
from ipfl.config.whole_config import Config
from ipfl.errors import InputError
from ipfl.reproduce.experiments import Scale
from ipfl.results.result import Result
from ipfl.study.study_run import StudyRun
from ipfl.system.files import write_text
from ipfl.system.plugins import source_commit

CODE_OF_RUNS = (
    *("errors.py", "core", "data", "training", "client", "methods", "market", "ledger", "engines", "stress"),
    *("keep", "play"),
)
"""Parts of the package that decide what comes out of a run; those above them only start and show runs."""
DIGITS = 4
"""Accuracies are kept with so many digits."""


class RunRecord(BaseModel):
    """The numbers that are kept of a run."""

    model_config = ConfigDict(extra="forbid")

    key: str
    seed: int
    settings: dict[str, Any]
    """Of its method alone, tuned or not."""
    commit: str | None
    version: str
    rounds: int
    seconds: float
    bytes_up: int
    bytes_down: int
    clients: list[int]
    personalized: list[float]
    """Accuracy of each of these clients' own models on its test data, after the last round."""
    goal: float | None
    """Their mean accuracy on points of their own that are no test data."""
    unseen: list[float]
    cluster_accuracy: list[list[float]] | None
    """[distribution][cluster]"""
    purity: float | None
    left: int
    curve: list[tuple[int, float, float | None, int]]
    """Of every evaluated round, counted from 0: mean accuracy, purity, clients that were there."""
    drift_round: int | None = None

    @property
    def accuracy(self) -> dict[int, float]:
        """By client."""
        return dict(zip(self.clients, self.personalized, strict=True))


def make_record(run: StudyRun, result: Result) -> RunRecord:
    """The numbers that are kept of a finished run."""
    summary, last = result.summary, result.last
    assert last is not None, "the last round is always evaluated"
    there, clusters = {line["round"]: line["clients"] for line in result.history}, last.cluster_accuracy
    return RunRecord(
        key=run.key,
        seed=run.seed,
        settings=dict(run.settings),
        commit=summary["commit"],
        version=version("ipfl"),
        rounds=summary["rounds"],
        seconds=summary["seconds"],
        bytes_up=summary["bytes_up"],
        bytes_down=summary["bytes_down"],
        clients=list(last.personalized),
        personalized=_rounded(last.personalized.values()),
        goal=_rounded_mean(last.goal) if last.goal else None,
        unseen=_rounded(last.unseen.values()),
        cluster_accuracy=None if clusters is None else [_rounded(row) for row in clusters],
        purity=last.purity,
        left=summary["left"],
        curve=[
            (number, _rounded_mean(one.personalized), one.purity, there[number])
            for number, one in sorted(result.evaluations.items())
            if one.personalized
        ],
        drift_round=run.config.task.drift_round if isinstance(run.config, Config) else None,
    )


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]


def _rounded_mean(accuracies: Mapping[int, float]) -> float:
    return round(float(np.mean(list(accuracies.values()))), DIGITS)


class ColumnRecord(BaseModel):
    """A column of an experiment: what its runs share, and their numbers."""

    model_config = ConfigDict(extra="forbid")

    config: dict[str, Any]
    runs: dict[str, dict[int, RunRecord]]
    """By the label of the method, then by seed; all methods have the same seeds."""


class ExperimentRecord(BaseModel):
    """An experiment at one scale, as it is committed."""

    model_config = ConfigDict(extra="forbid")

    name: str
    scale: str
    machine: dict[str, Any]
    reference: str
    ours: list[str]
    seeds: list[int]
    tuning: dict[str, Any] | None
    """The settings that tuning chose, by label, and how; None: nothing was tuned."""
    columns: dict[str, ColumnRecord]
    failures: list[str] = []

    @property
    def records(self) -> dict[str, RunRecord]:
        """All runs by key."""
        return {
            run.key: run
            for column in self.columns.values()
            for seeds in column.runs.values()
            for run in seeds.values()
        }

    @property
    def commits(self) -> list[str]:
        """Of the code that played the runs; mostly one."""
        return sorted({str(run.commit or run.version) for run in self.records.values()})


def result_file(folder: Path, name: str, scale: str) -> Path:
    """The file with the numbers of an experiment."""
    return folder / name / f"{scale}.json"


def read_json_if_any(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file; None if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    return found if isinstance(found, dict) else {}


def read_experiment_record(folder: Path, name: str, scale: str) -> ExperimentRecord | None:
    """The numbers of an experiment; None if it was not run."""
    path = result_file(folder, name, scale)
    found = read_json_if_any(path)
    try:
        return None if found is None else ExperimentRecord.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{path} is not the result of an experiment: {one_line(error, None)}") from error


def seeds_by_scale(folder: Path, name: str) -> dict[str, list[int]]:
    """With which seeds an experiment has results, by scale; scales without any are left out."""
    found = {scale: read_json_if_any(result_file(folder, name, scale)) or {} for scale in get_args(Scale)}
    return {scale: seeds for scale, one in found.items() if isinstance(seeds := one.get("seeds"), list)}


def read_all_runs(folder: Path, names: Iterable[str], scale: str) -> dict[str, RunRecord]:
    """All runs in the results of some experiments, by key."""
    found: dict[str, RunRecord] = {}
    for name in names:
        record = read_experiment_record(folder, name, scale)
        for key, run in record.records.items() if record is not None else ():
            found[key] = prefer_this_code(found.get(key), run) or run
    return found


def write_numbers(path: Path, content: Any) -> Path:
    """Writes numbers of an experiment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, compact_json(content))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    return path


def compact_json(content: Any) -> str:
    """JSON with a line for each key, whose lists of numbers are one line: people read it and its changes."""
    return _indented(content, 0) + "\n"


def _indented(value: Any, depth: int) -> str:
    if isinstance(value, dict) and value:
        pairs = ((json.dumps(str(key), ensure_ascii=False), of) for key, of in value.items())
        items, (start, end) = [f"{key}: {_indented(of, depth + 1)}" for key, of in pairs], "{}"
    elif isinstance(value, list) and _has_dicts(value):
        items, (start, end) = [_indented(one, depth + 1) for one in value], "[]"
    else:
        return json.dumps(value, ensure_ascii=False)
    inner = " " * (depth + 1)
    return f"{start}\n{inner}" + f",\n{inner}".join(items) + f"\n{' ' * depth}{end}"


def _has_dicts(values: list[Any]) -> bool:
    return any(isinstance(one, dict) or (isinstance(one, list) and _has_dicts(one)) for one in values)


def this_machine() -> dict[str, Any]:
    """The machine that runs are played on, as far as it may matter to their times."""
    import torch

    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def prefer_this_code(one: RunRecord | None, other: RunRecord | None) -> RunRecord | None:
    """Of two records of the same run, the one that the code here has played; else the first there is."""
    known = [record for record in (one, other) if record is not None]
    return next(filter(is_this_code, known), known[0] if known else None)


def is_this_code(record: RunRecord) -> bool:
    """True if a run was played by the code that is here now; of an installed package, by its version."""
    if record.commit is None and source_commit() is None:
        return record.version == version("ipfl")
    return is_same_code(record.commit)


@cache
def is_same_code(commit: str | None) -> bool:
    """True if a commit has the code that is here now.

    What stands above the round loop (commands, reports, experiments) cannot change a run, and may differ.
    """
    now = source_commit()
    if commit is None or now is None or commit == now:
        return commit == now
    package = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        ["git", "-C", str(package), "diff", "--quiet", commit, "--", *CODE_OF_RUNS],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0
