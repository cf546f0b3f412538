"""One HTML file about a run, a comparison or several of them: tables, figures, accounts, config.

The file needs nothing else: styles and figures are inside, there is no script, and its content policy
forbids the browser to load anything. Everything that comes from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ipfl.errors import InputError
from ipfl.figure_style import svg_text
from ipfl.report.config_text import toml_value
from ipfl.report.figure_list import FIGURES, available_figures, make_figure
from ipfl.report.result_tables import method_cells, run_rows
from ipfl.report.run_set import (
    RunSet,
    find_results,
    is_run,
    read_run_set,
)
from ipfl.report.run_tables import client_cells
from ipfl.results.frames import client_rows
from ipfl.results.result import Result
from ipfl.study.comparison import mean_figures
from ipfl.system.files import write_text

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; } p { margin: .3rem 0 .8rem; } .note { color: #555; }
nav a { margin-right: 1rem; } a { color: #00578a; }
.table { overflow-x: auto; } table { border-collapse: collapse; margin: .5rem 0; font-size: .92em; }
th, td { padding: .25rem .55rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; white-space: nowrap; } .number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; } tr.best td { font-weight: 600; }
.wide table { font-size: .84em; } .wide th, .wide td { padding: .25rem .4rem; }
figure { margin: 1.2rem 0 1.8rem; max-width: 54rem; } figcaption { color: #555; margin-top: .2rem; }
svg { display: block; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .85em; line-height: 1.4; }
summary { cursor: pointer; color: #00578a; margin: .6rem 0; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } nav { display: none; }
  figure, table { break-inside: avoid; } h2, h3 { break-after: avoid; } .table { overflow: visible; }
  .wide table { font-size: 7pt; } .wide th, .wide td { padding: .15rem .3rem; }
  details { display: none; } }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing is loaded. Images inside the file are shown: matplotlib draws heat maps as such."""


def write_page(results: Path, file: Path) -> Path:
    """Writes the page about a folder of results, and the folder that it is in; returns the file."""
    text = _page(results)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}") from error
    return file


def _page(results: Path) -> str:
    """The page: a section for every run or comparison, each with its name."""
    folders = find_results(results)
    sections = [(_name_of(folder, results), read_run_set(folder)) for folder in folders]
    title, has_many = escape(_name_of(results, results)), len(sections) > 1
    if not has_many and is_run(folders[0]):
        summary = sections[0][1].first.summary
        title = escape(f"{summary['method']}, seed {summary['seed']}")
    links = "".join(f'<a href="#part-{i}">{escape(name)}</a>' for i, (name, _) in enumerate(sections))
    body = "".join(
        f'<section id="part-{i}">{_section(i, name, runs, has_many)}</section>'
        for i, (name, runs) in enumerate(sections)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} – ipfl</title><style>{STYLE}</style></head><body>"
        f"<h1>{title}</h1>{f'<nav>{links}</nav>' if has_many else ''}{body}</body></html>\n"
    )


def _name_of(folder: Path, base: Path) -> str:
    return folder.resolve().name if folder == base else str(folder.relative_to(base))


def _section(number: int, name: str, runs: RunSet, has_heading: bool) -> str:
    parts = [f"<h2>{escape(name)}</h2>" if has_heading else "", f'<p class="note">{escape(runs.task)}</p>']
    is_single = sum(map(len, runs.runs.values())) == 1
    parts.append(_run_table(runs.first) if is_single else _comparison_table(runs))
    parts += [_figure(f"part-{number}", figure, runs) for figure in available_figures(runs)]
    for method, seeds in runs.runs.items():
        seed, run = next(iter(seeds.items()))
        which = escape("" if is_single else f" of {method}, seed {seed}")
        headers, rows = client_cells(client_rows(run), run.client_names)
        parts.append(f"<details><summary>Clients{which}</summary>{html_table(headers, rows)}</details>")
    parts.append(f"<details><summary>Config</summary>{_config(runs, is_single)}</details>")
    return "".join(parts)


def _figure(place: str, name: str, runs: RunSet) -> str:
    """A figure with its heading and how to read it; no other one on the page has the same place and name."""
    kind = FIGURES[name]
    title = kind.title.format(reference=runs.reference)
    drawn = svg_text(make_figure(name, runs, has_title=False), f"{place}-{name}")
    return f"<h3>{escape(title)}</h3><figure>{drawn}<figcaption>{escape(kind.reading)}</figcaption></figure>"


def html_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    best: int | None = None,
    numbers_from: int = 1,
) -> str:
    """A table of texts; columns from `numbers_from` on are numbers, row `best` is set apart."""

    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = [' class="number"' if column >= numbers_from else "" for column in range(len(values))]
        return "".join(
            f"<{tag}{kind}>{escape(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True)
        )

    lines = [f"{cells('td', row)}</tr>" for row in rows]
    body = "".join(
        ('<tr class="best">' if number == best else "<tr>") + line for number, line in enumerate(lines)
    )
    head = f"<thead><tr>{cells('th', headers)}</tr></thead>" if headers else ""
    width = "table wide" if len(headers) > 6 else "table"
    return f'<div class="{width}"><table>{head}<tbody>{body}</tbody></table></div>'


def _run_table(run: Result) -> str:
    """The figures of a run, as `ipfl run` prints them."""
    return html_table((), run_rows(run.summary), numbers_from=2)


def _comparison_table(runs: RunSet) -> str:
    """A row per method, the most accurate first."""
    figures = {name: mean_figures(seeds) for name, seeds in runs.runs.items()}
    order = sorted(figures, key=lambda name: -(figures[name]["personalized_accuracy"] or {"mean": 0})["mean"])
    rows = [
        [name, str(len(runs.runs[name])), *method_cells(figures[name], is_reference=name == runs.reference)]
        for name in order
    ]
    over = f"PMA over {runs.reference or 'reference'} (pp)"
    headers = ["method", "seeds", "accuracy (%)", over, "opt-outs", "purity (%)", "s per round", "up", "down"]
    failed = [
        f"<p><strong>Not finished:</strong> {escape(f'{name}, seed {seed}: {why}')}</p>"
        for name, seeds in runs.failures.items()
        for seed, why in seeds.items()
    ]
    return f'{html_table(headers, rows, best=0)}<p class="note">{escape(NOTES)}</p>{"".join(failed)}'


NOTES = (
    "Means over the seeds; ± is the standard deviation over clients. Opt-outs: clients that gain nothing "
    "over the reference. Up and down: traffic per client and round."
)


def _config(runs: RunSet, is_single: bool) -> str:
    """The config as TOML; of a comparison, what differs between methods is shown for each."""
    configs = {name: next(iter(seeds.values())).summary["config"] for name, seeds in runs.runs.items()}
    common = {key: value for key, value in next(iter(configs.values())).items() if key != "method"}
    lines = _toml_lines(common)
    for name, config in configs.items():
        lines += ["", f"# {name}"] if not is_single else [""]
        lines += _toml_lines({"method": config.get("method", {})})
    commit = runs.first.summary.get("commit")
    lines += ["", f"# commit {commit}"] if commit else []
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _toml_lines(content: Mapping[str, Any]) -> list[str]:
    """A config as TOML. Single values first, then sections; what is not set is left out."""
    single = {k: v for k, v in content.items() if not isinstance(v, Mapping) and v is not None}
    lines = [f"{key} = {toml_value(value)}" for key, value in single.items()]
    for key, section in content.items():
        if isinstance(section, Mapping):
            lines += ["", f"[{key}]"] if lines else [f"[{key}]"]
            lines += [f"{name} = {toml_value(value)}" for name, value in section.items() if value is not None]
    return lines
