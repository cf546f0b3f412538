"""Figures of whole runs: the list of runs, accuracy over rounds, clusters, and runs side by side.

Sums and choices are made by the database; what is sent is bounded, however long the run is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from ipfl.config.whole_config import Config
from ipfl.console.answers import (
    ComparedRun,
    ComparedRuns,
    Flow,
    FlowLink,
    HeatMap,
    MeanStd,
    News,
    RunDetail,
    RunRow,
    Series,
)
from ipfl.console.found_runs import FoundRun, FoundRuns
from ipfl.errors import InputError
from ipfl.keep.file_names import PLAN_FILE, SUMMARY_FILE
from ipfl.ledger.reader import Reader
from ipfl.ledger.store import RunStore
from ipfl.market.bank import ISSUER
from ipfl.methods import METHODS, method_class, method_settings
from ipfl.play.metrics import assessed_models
from ipfl.results.overview import flat_settings
from ipfl.system.files import read_json

MAX_POINTS = 1_000
"""Rounds of a chart; of longer runs every n-th is shown, and always the last."""
MAX_EVALUATIONS = 100
"""Evaluations that are read whole, with a value per client."""
FLOW_STEPS = 6
"""Rounds between which the flow of clients is shown."""
ACCURACY = "evaluation.personalized_accuracy"
SERIES_COLUMNS = {
    "accuracy": f"{ACCURACY}.mean",
    "accuracy_std": f"{ACCURACY}.std",
    "pma": "evaluation.pma.mean",
    "gini": "economy.gini",
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
}
"""Column of a series → metric in the store."""


def list_runs(runs: FoundRuns) -> list[RunRow]:
    """A row for every run, the newest first; a run that cannot be read says why."""
    rows = [run_row(runs, found) for found in runs.find().values()]
    return sorted(rows, key=lambda row: (-(row.updated or 0), row.name))


def run_row(runs: FoundRuns, found: FoundRun) -> RunRow:
    """The row of a run; never raises because of what the run holds."""
    try:
        with runs.read(found) as (store, reader):
            row = _stored_row(found, store, reader)
    except InputError as error:
        text = " ".join(str(error).split())
        return RunRow(
            key=found.key, name=found.name, state="unreadable", problem=text, updated=found.updated()
        )
    if row.state == "unfinished" and runs.is_running(found):
        return row.model_copy(update={"state": "running"})
    return row


def _stored_row(found: FoundRun, store: RunStore, reader: Reader) -> RunRow:
    header, config = store.header, _mapping(store.header.get("config"))
    task, method = _mapping(config.get("task")), _mapping(config.get("method"))
    done = posted_rounds(reader)
    planned = header.get("rounds")
    planned = planned if isinstance(planned, int) else done
    evaluated, figures = _last_evaluation(reader)
    seed = header.get("seed")
    return RunRow(
        key=found.key,
        name=found.name,
        state="finished" if done >= planned else "unfinished",
        method=str(header.get("method", "")),
        dataset=str(task.get("dataset", "own data")),
        partition=f"{task['distributions']}, {task.get('partition')}" if "distributions" in task else "",
        seed=seed if isinstance(seed, int) else None,
        clients=len(reader.clients()),
        clusters=str(method.get("clusters", "")),
        done=done,
        rounds=planned,
        accuracy=_mean_std(figures, ACCURACY),
        pma=_mean_std(figures, "evaluation.pma"),
        participation=figures.get("evaluation.participation_rate"),
        evaluated=evaluated,
        tokens=-reader.kept_balances().get(ISSUER, 0) if header.get("rules") else None,
        updated=found.updated(),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def posted_rounds(reader: Reader) -> int:
    """Number of committed rounds."""
    numbers = reader.round_numbers()  # the opening is round −1
    return numbers[-1] + 1 if numbers else 0


def run_news(runs: FoundRuns, found: FoundRun) -> News:
    """The progress of a run."""
    row = run_row(runs, found)
    return News(version=f"{row.state} {row.done} of {row.rounds}", is_last=row.state == "finished")


def list_news(runs: FoundRuns) -> News:
    """When which run was changed."""
    stamps = {key: run.stamp() for key, run in runs.find().items()}
    return News(version=sha256(repr(stamps).encode()).hexdigest(), is_last=False)


def _last_evaluation(reader: Reader) -> tuple[int | None, dict[str, float]]:
    numbers = evaluated_rounds(reader)
    return (numbers[-1], reader.metrics(numbers[-1])) if numbers else (None, {})


def evaluated_rounds(reader: Reader) -> list[int]:
    """Rounds that were evaluated, ascending."""
    return reader.column("SELECT round FROM metrics WHERE name = ? ORDER BY round", f"{ACCURACY}.mean")


def _mean_std(figures: Mapping[str, float], name: str) -> MeanStd | None:
    if f"{name}.mean" not in figures:
        return None
    return MeanStd(mean=figures[f"{name}.mean"], std=figures.get(f"{name}.std", 0.0))


def _read_json_file(path: Path) -> Mapping[str, Any]:
    """A file of a run; empty if it is not there or not JSON, as while it is being written."""
    try:
        return read_json(path, "file of a run")
    except InputError:
        return {}


def run_detail(runs: FoundRuns, found: FoundRun) -> RunDetail:
    """A run with its settings and costs.

    Raises:
        InputError: It cannot be read.
    """
    row = run_row(runs, found)
    store = runs.open(found)
    with store.snapshot() as reader:
        traffic = {name: _total(reader, name) for name in ("bytes_up", "bytes_down")}
    summary = _read_json_file(found.folder / SUMMARY_FILE)
    seconds = summary.get("seconds")
    reference = reference_run(runs, found)
    return RunDetail(
        **row.model_dump(),
        **traffic,
        head=store.head(),
        reference=None if reference is None else reference.key,
        has_market=bool(store.header.get("rules")),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        settings=non_default_settings(store.header.get("config")),
    )


def non_default_settings(config: Any) -> dict[str, str]:
    """Settings of a run's config that are not the default, by dotted key; the method's own too.

    Args:
        config: As the run recorded it. Nothing that it names is imported: of methods that are not among those
            of the package, all settings are told.
    """
    if not isinstance(config, Mapping):
        return {}
    name = _mapping(config.get("method")).get("name")
    usual = _run_defaults() | (_method_defaults(name) if name in METHODS else {})
    return {
        key: json.dumps(value, ensure_ascii=False).strip('"')
        for key, value in flat_settings(config)
        if key == "method.name" or key not in usual or usual[key] != value
    }


@cache
def _run_defaults() -> dict[str, Any]:
    """All settings but those of methods."""
    plain = flat_settings(Config().model_dump(mode="json"))
    return {key: value for key, value in plain if not key.startswith("method.")}


@cache
def _method_defaults(name: str) -> dict[str, Any]:
    """A method's settings as runs record them, if nothing is chosen."""
    return dict(flat_settings({"method": method_settings(method_class(name)())}))


def _total(reader: Reader, name: str) -> int:
    return int(sum(reader.column("SELECT value FROM metrics WHERE name = ?", name)))


def reference_run(runs: FoundRuns, found: FoundRun) -> FoundRun | None:
    """The run of the same comparison and seed that PMA is measured against."""
    name = _read_json_file(found.folder.parent.parent / PLAN_FILE).get("reference")
    wanted = found.folder.parent.parent / str(name) / found.folder.name
    return next((run for run in runs.find().values() if name and run.folder == wanted), None)


def thin(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many of the numbers, evenly spread, the first and the last among them."""
    if len(numbers) <= most:
        return list(numbers)
    step = (len(numbers) - 1) / (most - 1)
    return sorted({numbers[round(index * step)] for index in range(most)})


def series(reader: Reader, columns: Iterable[str] = SERIES_COLUMNS) -> Series:
    """Figures over rounds."""
    wanted = {SERIES_COLUMNS[column]: column for column in columns}
    shown = thin(range(posted_rounds(reader)), MAX_POINTS)
    evaluated = set(thin(evaluated_rounds(reader), MAX_POINTS))
    kept = sorted({*shown, *evaluated})
    place = {number: index for index, number in enumerate(kept)}
    found: dict[str, list[float | None]] = {column: [None] * len(kept) for column in wanted.values()}
    marks = ", ".join("?" * len(wanted))
    rows = reader.connection.execute(
        f"SELECT round, name, value FROM metrics WHERE name IN ({marks})", [*wanted]
    )
    for number, name, value in rows:
        if number in place:
            found[wanted[name]][place[number]] = value
    kept_columns = {name: values for name, values in found.items() if any(v is not None for v in values)}
    return Series(round=kept, columns=kept_columns)


def evaluation(reader: Reader, round: int) -> Mapping[str, Any]:
    """The results of an evaluation, with a value per client."""
    return _mapping(reader.rest(round).get("evaluation"))


def heat_map(reader: Reader) -> HeatMap:
    """The newest accuracy of every server model on every distribution."""
    for round in reversed(evaluated_rounds(reader)[-5:]):
        found = evaluation(reader, round)
        if table := found.get("cluster_accuracy"):
            models = [name.replace("_", " ") for name in assessed_models(found)]
            kinds = [f"distribution {d}" for d in range(len(table))]
            return HeatMap(round=round, models=models, distributions=kinds, accuracy=table)
    return HeatMap(round=None, models=[], distributions=[], accuracy=[])


def flow(reader: Reader) -> Flow:
    """Numbers of clients that moved from one preferred cluster to another, between a few rounds."""
    if (source := _preferences(reader)) is None:
        return Flow(rounds=[], links=[])
    first, last = reader.connection.execute(f"SELECT min(round), max(round) FROM {source}").fetchone()
    if first == last:
        return Flow(rounds=[], links=[])
    chosen = thin(range(first, last + 1), FLOW_STEPS)
    places: dict[int, dict[int, int]] = {number: {} for number in chosen}
    marks = ", ".join("?" * len(chosen))
    rows = reader.connection.execute(
        f"SELECT round, client, cluster FROM {source} AND round IN ({marks})", chosen
    )
    for number, client, cluster in rows:
        places[number][client] = cluster
    links = [
        FlowLink(from_round=before, from_cluster=here, to_round=after, to_cluster=there, clients=count)
        for before, after in pairwise(chosen)
        for (here, there), count in sorted(_moves(places[before], places[after]).items())
    ]
    return Flow(rounds=chosen if links else [], links=links)


def _moves(before: Mapping[int, int], after: Mapping[int, int]) -> Counter[tuple[int, int]]:
    """Number of clients by the cluster that they were in before and the one after."""
    return Counter((before[client], after[client]) for client in before.keys() & after.keys())


def _preferences(reader: Reader) -> str | None:
    """Preferred clusters: the first wishes among bids, else the clusters in which clients trained."""
    for source in ("bids WHERE rank = 0 AND cluster >= 0", "seats WHERE cluster >= 0"):
        if reader.column(f"SELECT 1 FROM {source} LIMIT 1"):
            return source
    return None


def client_accuracies(reader: Reader, round: int) -> dict[int, float]:
    """Accuracy of each client's own model in an evaluation."""
    measured = evaluation(reader, round)
    return dict(zip(measured.get("clients", ()), measured.get("personalized", ()), strict=False))


def compare_runs(runs: FoundRuns, chosen: Sequence[FoundRun], reference: FoundRun) -> ComparedRuns:
    """Convergence of several runs, and what each client gains over the reference run."""
    baseline = _final_accuracies(runs, reference)
    found: list[ComparedRun] = []
    for one in chosen:
        with runs.read(one) as (_, reader):
            convergence = series(reader, ["accuracy"])
        mine = _final_accuracies(runs, one)
        gains = sorted(mine[i] - baseline[i] for i in mine if i in baseline) if one != reference else []
        found.append(
            ComparedRun(
                run=run_row(runs, one),
                convergence=convergence,
                pma=gains,
                mean_pma=sum(gains) / len(gains) if gains else None,
                share_gaining=sum(gain > 0 for gain in gains) / len(gains) if gains else None,
            )
        )
    return ComparedRuns(reference=reference.key, runs=found, warnings=_differences(found))


def _final_accuracies(runs: FoundRuns, run: FoundRun) -> dict[int, float]:
    with runs.read(run) as (_, reader):
        numbers = evaluated_rounds(reader)
        return client_accuracies(reader, numbers[-1]) if numbers else {}


def _differences(found: Sequence[ComparedRun]) -> list[str]:
    """Reasons why the runs may not be comparable."""
    fields = {
        "data sets": "dataset",
        "partitions": "partition",
        "numbers of clients": "clients",
        "seeds": "seed",
        "numbers of rounds": "evaluated",
    }
    different = [
        name for name, field in fields.items() if len({getattr(one.run, field) for one in found}) > 1
    ]
    return [f"These runs have different {name}." for name in different]
