"""Tables of experiments: ours beside the printed numbers, and where our methods stand, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ipfl.config.run_config import ADAPTED
from ipfl.errors import InputError
from ipfl.report.figure_list import FIGURES
from ipfl.report.result_tables import plain_table
from ipfl.reproduce.experiments import Experiment, Scale, experiment_names, read_common, read_experiment
from ipfl.reproduce.measures import MEASURES
from ipfl.reproduce.pictures import picture_name, pictures, save_pictures
from ipfl.reproduce.results_file import ColumnRecord, ExperimentRecord, read_experiment_record
from ipfl.study.statistics import Standing, Values, sample_spread, standing
from ipfl.system.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

BEGIN_MARK = "<!-- made by `ipfl reproduce tables`; do not edit -->"
PICTURES = "img/reproduce"
"""Beside the document."""
END_MARK = "<!-- end of `ipfl reproduce tables` -->"


def method_title(label: str) -> str:
    """The name of a method in tables."""
    return read_common().names.get(label, label)


def column_values(record: ExperimentRecord, column: ColumnRecord, measure: str) -> Mapping[str, Values]:
    """The values of all methods in a column, by seed; methods without a value are left out."""
    of = MEASURES[measure].of
    references = column.runs.get(record.reference, {})
    found: dict[str, dict[int, float]] = {}
    for label, seeds in column.runs.items():
        values = {seed: of(run, references.get(seed)) for seed, run in seeds.items()}
        known = {seed: value for seed, value in values.items() if value is not None}
        if known:
            found[label] = known
    return found


def _cell(values: Values | None, digits: int) -> str:
    """`81.2 ± 0.4`: mean and sample standard deviation over seeds."""
    if not values:
        return "–"
    mean, deviation = fmean(values.values()), sample_spread(list(values.values()))
    return _with_minus(f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}"))


def head_and_rows(
    experiment: Experiment, record: ExperimentRecord, name: str
) -> tuple[list[str], list[list[str]]]:
    """A column of an experiment as a table: a row for each method, ours first, then by the first measure."""
    column, printed = record.columns[name], experiment.printed.get(name, {})
    values = {measure: column_values(record, column, measure) for measure in experiment.measures}
    head = ["method", "seeds"]
    for measure in experiment.measures:
        head.append(MEASURES[measure].title)
        if measure in printed:
            head.append("printed")
    rows = []
    for label in _labels_in_order(experiment, record, name, values[experiment.measures[0]]):
        cells = [method_title(label), str(len(column.runs.get(label, {})))]
        for measure in experiment.measures:
            cells.append(_cell(values[measure].get(label), MEASURES[measure].digits))
            if measure in printed:
                cells.append(_with_minus(str(printed[measure].get(label, "–"))))
        rows.append(cells)
    return head, rows


def _labels_in_order(
    experiment: Experiment, record: ExperimentRecord, name: str, values: Mapping[str, Values]
) -> list[str]:
    """All methods with runs, and those that the paper prints something of."""
    printed = [label for of in experiment.printed.get(name, {}).values() for label in of]
    labels = dict.fromkeys([*record.columns[name].runs, *printed])
    ours = [label for label in experiment.ours if label in labels]
    others = [label for label in labels if label not in ours]
    sign = -1 if MEASURES[experiment.measures[0]].is_higher_better else 1

    def place(label: str) -> tuple[bool, float]:
        known = values.get(label)
        return not known, sign * fmean(known.values()) if known else 0.0

    return [*ours, *sorted(others, key=place)]


def terminal_tables(experiment: Experiment, record: ExperimentRecord) -> list[Table]:
    """The tables of an experiment for a terminal."""
    found = []
    for name in record.columns:
        head, rows = head_and_rows(experiment, record, name)
        table = plain_table(*head, right=head[1:], title=f"{experiment.title} {name}".strip())
        for row in rows:
            table.add_row(*row)
        found.append(table)
    return found


def standings(experiment: Experiment, record: ExperimentRecord, name: str) -> dict[str, dict[str, Standing]]:
    """The place of each of our methods among all others that are not ours: measure → label → standing."""
    found: dict[str, dict[str, Standing]] = {}
    left_out = {*experiment.ours, *read_common().retired}
    for measure in experiment.measures:
        if not MEASURES[measure].is_ranked:
            continue
        values = column_values(record, record.columns[name], measure)
        for label in experiment.ours:
            rivals = {one: of for one, of in values.items() if one == label or one not in left_out}
            one = standing(label, rivals, is_higher_better=MEASURES[measure].is_higher_better)
            if one is not None:
                found.setdefault(measure, {})[label] = one
    return found


def _standing_text(label: str, one: Standing, digits: int) -> str:
    return f"{method_title(label)}: {_rank_text(one)}, {_difference_text(one, digits)}"


def _rank_text(one: Standing) -> str:
    """The rank; level with the first if nobody is better beyond the interval."""
    text = f"{one.rank} of {one.methods}"
    return f"**{text}**" if one.rank == 1 else f"{text}, level" if one.is_first_or_level else text


def _difference_text(one: Standing, digits: int) -> str:
    return f"{with_interval(one.difference, one.interval, digits)} against {method_title(one.best_other)}"


def with_interval(difference: float, ends: tuple[float, float] | None, digits: int) -> str:
    """A difference with its sign, and the ends of its interval if it has one."""
    text = f"{difference:+.{digits}f}"
    if ends is not None:
        text += f" [{ends[0]:+.{digits}f}, {ends[1]:+.{digits}f}]"
    return _with_minus(text)


def _with_minus(text: str) -> str:
    """Numbers with a minus sign instead of a hyphen."""
    return text.replace("-", "−")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def experiment_text(experiment: Experiment, record: ExperimentRecord | None, scale: Scale) -> str:
    """The part of the document about one experiment."""
    parts = [f"## {experiment.name}", claim_text(experiment)]
    if record is None:
        return "\n\n".join([*parts, f"No result is committed yet (`ipfl reproduce {experiment.name}`)."])
    parts.append(scale_text(experiment, scale))
    for name in record.columns:
        head, rows = head_and_rows(experiment, record, name)
        title = f"**{name}**" if name else ""
        parts += [text for text in (title, markdown_table(head, rows)) if text]
        if lines := standing_lines(experiment, record, name):
            parts.append("\n".join(f"- {line}" for line in lines))
        for figure in pictures(experiment, record, name):
            title = FIGURES[figure].title.format(reference=method_title(record.reference))
            parts.append(f"![{title}, {name}]({PICTURES}/{picture_name(experiment, name, figure)})")
    parts.append(made_with(record))
    if record.failures:
        parts.append("Failed: " + "; ".join(record.failures) + ".")
    return "\n\n".join(parts)


def claim_text(experiment: Experiment) -> str:
    """The title of an experiment, its place in the paper, and the paper's claim."""
    place = ", ".join(f"`{one}`" if ":" in one else one for one in experiment.place.split(", "))
    claim = f" The paper: {experiment.claim}" if experiment.claim else ""
    return f"{experiment.title} ({place}).{claim}"


def scale_text(experiment: Experiment, scale: str) -> str:
    """The difference of runs at a scale from the paper's, and the note of an experiment."""
    differs = experiment.differs or read_common().tasks[experiment.task].differs
    return f"Scale {scale}: {differs}. {experiment.note}".strip()


def standing_lines(experiment: Experiment, record: ExperimentRecord, name: str) -> list[str]:
    """The places of our methods in a column, a line for each measure."""
    return [
        f"{MEASURES[measure].title}: "
        + "; ".join(_standing_text(label, one, MEASURES[measure].digits) for label, one in of.items())
        for measure, of in standings(experiment, record, name).items()
    ]


def made_with(record: ExperimentRecord) -> str:
    """Seeds, commits, machine and tuning."""
    tuned = "nothing was tuned"
    if record.tuning is not None:
        played = {label for column in record.columns.values() for label in column.runs}
        seeds = ", ".join(map(str, record.tuning["seeds"]))
        chosen = "; ".join(
            f"{method_title(label)} {_settings_text(one['chosen'])}"
            for label, one in record.tuning["methods"].items()
            if one["chosen"] and played & {label, f"{label}{ADAPTED}"}
        )
        tuned = f"tuned on {record.tuning['column'] or 'the only column'}, seeds {seeds}: {chosen}"
    seeds = ", ".join(map(str, record.seeds))
    commits = ", ".join(one[:10] for one in record.commits)
    return f"Seeds {seeds}; commit {commits}; {record.machine['cores']} cores; {tuned}."


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {value}`" for key, value in settings.items())


def overview(records: Mapping[str, ExperimentRecord]) -> tuple[list[str], list[list[str]]] | None:
    """Head and rows: where our methods stand in every table by its first measure; None without results."""
    rows, ours = [], dict[str, None]()
    for name, record in records.items():
        experiment = read_experiment(name)
        for column in record.columns:
            found = standings(experiment, record, column)
            if not found:
                continue
            measure, of = next(iter(found.items()))
            ours |= dict.fromkeys(of)
            digits = MEASURES[measure].digits
            cells = {
                label: f"{_rank_text(one)}, {_difference_text(one, digits)}" for label, one in of.items()
            }
            rows.append((f"[{name}](#{name})", column, MEASURES[measure].title, cells))
    if not rows:
        return None
    head = ["experiment", "column", "by", *map(method_title, ours)]
    return head, [[*row, *(of.get(label, "–") for label in ours)] for *row, of in rows]


def _read_records(results: Path, scale: Scale) -> dict[str, ExperimentRecord]:
    """The results of all experiments that have any."""
    found = {name: read_experiment_record(results, name, scale) for name in experiment_names()}
    return {name: record for name, record in found.items() if record is not None}


def document_text(results: Path, scale: Scale) -> str:
    """The text between the marks of the document."""
    records = _read_records(results, scale)
    found = overview(records)
    parts = [read_common().introduction.strip(), *([markdown_table(*found)] if found else [])]
    for name in experiment_names():
        parts.append(experiment_text(read_experiment(name), records.get(name), scale))
    return "\n\n".join(parts)


def write_document(document: Path, results: Path, scale: Scale) -> list[Path]:
    """Puts the tables of all experiments between the marks of a document; returns the files written."""
    try:
        before = document.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {document}: {error.strerror}") from error
    if before.count(BEGIN_MARK) != 1 or before.count(END_MARK) != 1:
        marks = f"{BEGIN_MARK} {END_MARK}"
        raise InputError(
            f"{document} must have these two lines once, with nothing but tables between: {marks}"
        )
    files = [document]
    for name, record in _read_records(results, scale).items():
        if read_experiment(name).figures:
            files += save_pictures(read_experiment(name), record, document.parent / PICTURES)
    head, rest = before.split(BEGIN_MARK)
    tail = rest.split(END_MARK)[1]
    write_text(document, f"{head}{BEGIN_MARK}\n\n{document_text(results, scale)}\n\n{END_MARK}{tail}")
    return files
