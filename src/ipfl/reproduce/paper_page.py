"""One HTML file about the results of experiments: the paper's tables beside ours, and their figures.

Texts of experiments are written in Markdown; of that, links inside the page, code and bold words are shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import get_args

from ipfl.errors import InputError
from ipfl.report.run_page import document_html, figure_html, html_table, save_page, toml_lines
from ipfl.reproduce.experiments import (
    Experiment,
    Scale,
    experiment_names,
    read_common,
    read_experiment,
)
from ipfl.reproduce.paper_tables import (
    claim_text,
    head_and_rows,
    made_with,
    overview,
    scale_text,
    standing_lines,
)
from ipfl.reproduce.pictures import pictures, run_set
from ipfl.reproduce.results_file import ExperimentRecord, read_experiment_record

SCALES: tuple[str, ...] = get_args(Scale)


def experiment_files(results: Path) -> list[Path]:
    """The results of experiments in a file, in the folder of an experiment, or in a folder of several.

    Empty if there are none: it may be a folder of something else.
    """
    if results.is_file():
        return [results] if results.stem in SCALES and results.suffix == ".json" else []
    names = [f"{scale}.json" for scale in SCALES]
    own = [results / name for name in names if (results / name).is_file()]
    return own or [file for name in names for file in sorted(results.glob(f"*/{name}"))]


def write_experiments_page(files: Sequence[Path], file: Path) -> Path:
    """Writes the page about some experiments, in the order of the paper; returns the file.

    Of an experiment at several scales the largest is shown.

    Raises:
        InputError: A file is not the result of an experiment.
    """
    by_scale = sorted(map(_read_result, files), key=lambda one: SCALES.index(one.scale))
    largest = {one.name: one for one in by_scale}
    records = [largest[name] for name in experiment_names() if name in largest]
    parts = [_overview_html(records), *(_experiment_html(one) for one in records)]
    single = read_experiment(records[0].name).title if len(records) == 1 else None
    title = single or "The paper's tables and figures"
    return save_page(document_html(title, "".join(parts)), file)


def _read_result(file: Path) -> ExperimentRecord:
    # `NAME/SCALE.json`, as it was written.
    name = file.resolve().parent.name
    record = read_experiment_record(file.resolve().parents[1], name, file.stem)
    if record is None or record.scale not in SCALES or record.name not in experiment_names():
        raise InputError(f"{file} is not the result of an experiment of `ipfl reproduce list`")
    compared = record.with_shared_seeds()
    if not compared.columns:
        raise InputError(
            f"{file} has no seed that all methods share: `ipfl reproduce {name}` goes on with it"
        )
    return compared


def _overview_html(records: Sequence[ExperimentRecord]) -> str:
    """What all tables share, and where our methods stand in each of them, by scale."""
    if len(records) == 1:
        return ""
    parts = [_paragraphs(read_common().introduction)]
    for scale in SCALES:
        found = overview({one.name: one for one in records if one.scale == scale})
        if found is not None:
            head, rows = found
            table = html_table(head, rows, numbers_from=len(head), show=inline_html)
            parts.append(f"<h2>All tables, scale {scale}</h2>{table}")
    return "".join(parts)


def _experiment_html(record: ExperimentRecord) -> str:
    """An experiment: what the paper says, our tables and figures, and what they were made with."""
    experiment = read_experiment(record.name)
    parts = [f'<section id="{record.name}"><h2>{record.name}</h2>', _paragraphs(claim_text(experiment))]
    parts.append(f'<p class="note">{inline_html(scale_text(experiment, record.scale))}</p>')
    parts += [_column(experiment, record, place, name) for place, name in enumerate(record.columns)]
    parts += [_paragraphs(text) for text in (experiment.found, made_with(record)) if text]
    parts += [f"<p><strong>Failed:</strong> {escape(text)}</p>" for text in record.failures]
    return "".join([*parts, "</section>"])


def _column(experiment: Experiment, record: ExperimentRecord, place: int, name: str) -> str:
    """A column: its table, where our methods stand, its figures and its config."""
    table = html_table(*head_and_rows(experiment, record, name), show=inline_html)
    parts = [f"<h3>{escape(name)}</h3>" if name else "", table]
    lines = [f"<li>{inline_html(line)}</li>" for line in standing_lines(experiment, record, name)]
    parts.append(f"<ul>{''.join(lines)}</ul>" if lines else "")
    shown = run_set(experiment, record, name)
    where = f"{record.name}-{record.scale}-{place}"
    parts += [figure_html(where, figure, shown) for figure in pictures(experiment, record, name)]
    config = escape("\n".join(toml_lines(record.columns[name].config)))
    return "".join([*parts, f"<details><summary>Config</summary><pre>{config}</pre></details>"])


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{inline_html(part)}</p>" for part in text.strip().split("\n\n"))


def inline_html(text: str) -> str:
    """A line of Markdown as HTML, everything in it escaped; links lead to places on the page alone."""
    found = escape(text, quote=False).replace(", %", ",\u00a0%")
    found = re.sub(r"`([^`]+)`", r"<code>\1</code>", found)
    found = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", found)
    found = re.sub(r"\*(\S|\S[^*]*\S)\*", r"<em>\1</em>", found)
    return re.sub(r"\[([^\]]+)\]\((#[\w-]+)\)", r'<a href="\2">\1</a>', found)
