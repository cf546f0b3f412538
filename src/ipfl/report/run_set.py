"""Runs to be shown together: read from folders, or taken from a comparison.

Nothing in a folder is trusted: what is not a run as `ipfl run` writes it is refused with one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipfl.core import ClientId
from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE, SUMMARY_FILE
from ipfl.methods import REFERENCE
from ipfl.results.finished import load_figures
from ipfl.results.result import Result
from ipfl.study.method_labels import folder_names
from ipfl.system.files import read_json

if TYPE_CHECKING:
    pass

Seeds = Mapping[int, Result]
"""Runs of one method by seed."""


@dataclass(frozen=True)
class RunSet:
    """Runs to be shown together."""

    runs: Mapping[str, Seeds]
    """By the name of the method or run, then by seed; none is empty."""
    reference: str | None = None
    """The one among them that PMA is measured against."""
    failures: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Reasons why runs of a method are missing, by seed."""

    @property
    def first(self) -> Result:
        """Any of the runs, for what they have in common."""
        return next(iter(next(iter(self.runs.values())).values()))

    @property
    def task(self) -> str:
        """The task of all of them, as far as they agree."""
        summaries = [run.summary for seeds in self.runs.values() for run in seeds.values()]

        def agreed(key: str) -> Any:
            values = [summary[key] for summary in summaries]
            return values[0] if all(value == values[0] for value in values) else None

        parts = [str(agreed(key)) for key in ("dataset", "partition") if agreed(key) is not None]
        if (clients := agreed("clients")) is not None:
            parts.append(f"{clients} clients")
        most = max(len(seeds) for seeds in self.runs.values())
        return ", ".join([*parts, *([f"{most} seeds"] if most > 1 else [])])

    def pma(self, name: str) -> dict[int, dict[ClientId, float]]:
        """PMA of each client after the last round, by seed; of seeds whose reference is there."""
        if self.reference is None or name == self.reference:
            return {}
        found = {}
        for seed, run in self.runs[name].items():
            reference = self.runs[self.reference].get(seed)
            if run.last is not None and reference is not None:
                found[seed] = run.last.pma(reference.reference(run.last.round)) or {}
        return {seed: gains for seed, gains in found.items() if gains}


def read_run_set(folder: Path) -> RunSet:
    """The run or the comparison in a folder."""
    if not is_run(folder):
        return _read_comparison(folder)
    run = load_figures(folder)
    return RunSet({run.summary["method"]: {run.summary["seed"]: run}})


def is_run(folder: Path) -> bool:
    """True if a folder holds a finished run."""
    return (folder / SUMMARY_FILE).exists()


def check_outside_runs(path: Path) -> None:
    """Refuses to write into the folder of a run: `ipfl ledger verify` accepts only the run's own files."""
    for folder in (path.resolve(), *path.resolve().parents):
        if is_run(folder):
            raise InputError(f"{path} is in the folder of a run, which holds only what the run wrote")


def is_comparison(folder: Path) -> bool:
    """True if a folder holds a comparison with at least one finished run."""
    return next(_runs_of(folder), None) is not None


def find_results(folder: Path) -> list[Path]:
    """The runs and comparisons in a folder, or in the folders inside it."""
    if is_run(folder) or is_comparison(folder):
        return [folder]
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of a run, a comparison or results")
    found = [inner for inner in sorted(folder.iterdir()) if is_run(inner) or is_comparison(inner)]
    if not found:
        raise InputError(f"{folder} holds no finished run and no comparison")
    return found


def _runs_of(folder: Path) -> Iterator[Path]:
    """Folders of the finished runs of a comparison."""
    return (file.parent for file in sorted(folder.glob(f"*/seed-*/{SUMMARY_FILE}")))


def _read_comparison(folder: Path) -> RunSet:
    summary = (
        read_json(folder / COMPARISON_FILE, "file that a comparison writes")
        if (folder / COMPARISON_FILE).exists()
        else {}
    )
    methods = summary.get("methods")
    order = list(methods) if isinstance(methods, dict) else []
    labels = {name: label for label, name in folder_names(order).items()}
    runs: dict[str, dict[int, Result]] = {}
    for place in _runs_of(folder):
        run = load_figures(place)
        runs.setdefault(labels.get(place.parent.name, place.parent.name), {})[run.summary["seed"]] = run
    if not runs:
        raise InputError(f"{folder} holds no finished run and no comparison")
    names = sorted(runs, key=lambda name: order.index(name) if name in order else len(order))
    reference = summary.get("reference", REFERENCE)
    failures = {name: _failures(methods[name]) for name in order} if isinstance(methods, dict) else {}
    return RunSet(
        {name: dict(sorted(runs[name].items())) for name in names},
        reference if reference in runs and len(runs) > 1 else None,
        {name: why for name, why in failures.items() if why},
    )


def _failures(figures: Any) -> dict[int, str]:
    failures = figures.get("failures") if isinstance(figures, dict) else None
    if not isinstance(failures, dict):
        return {}
    return {int(seed): str(why) for seed, why in failures.items() if str(seed).isdecimal()}


def client_name(run: Result, client: ClientId) -> str:
    """The name of a client in figures and tables: its own name if the data has names, else its number."""
    name = (run.summary.get("client_names") or {}).get(str(client))
    return f"client {client}" if name is None else str(name)
