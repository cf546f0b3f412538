"""Tables for the terminal, readable at 80 columns. Shares are in percent with one decimal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from ipfl.methods import DEFAULT, METHODS, REFERENCE, method_summary

if TYPE_CHECKING:
    from ipfl.report.config_text import Hyperparameter
    from ipfl.study.comparison import Comparison

NO_VALUE = "–"
SHORT_NAME = 10
"""Letters of a method's name that have room beside all columns of a comparison."""


def format_percent(value: float | None) -> str:
    """A share in percent."""
    return NO_VALUE if value is None else f"{100 * value:.1f}"


def format_mean_std(figure: Mapping[str, float] | None, *, signed: bool = False) -> str:
    """Mean ± standard deviation in percent."""
    if figure is None:
        return NO_VALUE
    return f"{100 * figure['mean']:{'+' if signed else ''}.1f} ± {100 * figure['std']:.1f}"


def format_count(number: int | None) -> str:
    """A whole number, such as tokens, in groups of three digits."""
    return NO_VALUE if number is None else f"{number:,}".replace(",", " ")


def format_size(nbytes: float | None) -> str:
    """Bytes in a unit that people read."""
    if nbytes is None:
        return NO_VALUE
    for unit in ("B", "kB", "MB"):
        if nbytes < 999.5:
            return f"{nbytes:.0f} {unit}" if nbytes >= 99.5 or unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def plain_table(*headers: str, right: Sequence[str] = (), title: str | None = None) -> Table:
    """A table whose first column and whose numbers (the columns in `right`) are never broken."""
    table = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", padding=(0, 1, 0, 0)
    )
    for number, header in enumerate(headers):
        justify: Literal["left", "right"] = "right" if header in right else "left"
        table.add_column(header, justify=justify, no_wrap=number == 0 or header in right)
    return table


def shorten(name: str, length: int) -> str:
    """A name, or as much of it as `length` characters hold, with an ellipsis."""
    return name if len(name) <= length else f"{name[: length - 1]}…"


def break_names(table: Table) -> None:
    """Lets names in the first column go on over several lines, where they would take the room of numbers."""
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"


def run_table(summary: Mapping[str, Any]) -> Table:
    """The figures of a run."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in run_rows(summary):
        table.add_row(name, escape(value))
    return table


def run_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of the figures of a run."""
    from ipfl.results.result import mean_and_spread

    rounds, clients = summary["rounds"], summary["clients"]
    each = f", {summary['seconds'] / rounds:.2f} s each" if rounds else ""
    data = ", ".join(dict.fromkeys([summary["dataset"], summary["partition"]]))  # not "own, own"
    early = "; stopped early: no better for a while" if summary.get("stopped_early") else ""
    rows = [
        ("method", summary["method"]),
        ("task", f"{data}, {clients} clients, seed {summary['seed']}"),
        ("model", _model_text(summary)),
        ("rounds", f"{rounds} in {summary['seconds']:.1f} s{each}{early}"),
    ]
    measure = "score" if (summary.get("target") or {}).get("kind") == "regression" else "accuracy"
    accuracies = {
        f"personalized {measure}": summary["personalized_accuracy"],
        f"global model's {measure}": summary["global_accuracy"],
        f"unseen clients' {measure}": summary["unseen_accuracy"],
    }
    for name, figure in accuracies.items():
        if figure:
            rows.append((name, f"{format_mean_std(figure)} % over clients"))
    for name, figure in summary.get("metrics", {}).items():
        if figure:
            rows.append((name, f"{mean_and_spread(figure['mean'], figure['std'])} over clients"))
    if summary["cluster_accuracy"] and summary["clusters"]:
        for number, clusters in enumerate(summary["cluster_accuracy"]):
            percents = "  ".join(map(format_percent, clusters))
            rows.append((f"clusters on distribution {number}", f"{percents} %"))
    if summary["purity"] is not None:
        rows.append(("purity", f"{format_percent(summary['purity'])} %"))
    if separation := summary.get("separation"):
        text = f"{format_mean_std(separation, signed=True)} points: own cluster's model over the others"
        rows.append(("separation", text))
    if text := _last_step_text(summary):
        rows.append(("last step", text))
    if summary["left"]:
        rows.append(("left for good", f"{summary['left']} clients"))
    if summary.get("adversary"):
        rows += _adversary_rows(summary["adversary"])
    if rounds:
        up, down = (format_size(summary[key] / rounds / clients) for key in ("bytes_up", "bytes_down"))
        rows.append(("traffic", f"{up} up, {down} down per client and round"))
    return rows


def _last_step_text(figures: Mapping[str, Any]) -> str:
    """The cost of the last step at a client; empty without one."""
    if figures.get("last_step_passes") is None:
        return ""
    seconds = figures["last_step_seconds"]
    took = "" if seconds is None else f", {seconds:.2g} s"
    return f"{figures['last_step_passes']:.0f} passes over a client's points{took}"


def _model_text(summary: Mapping[str, Any]) -> str:
    """The network's name; what was picked, if none was named."""
    if summary.get("model") != "auto":
        return str(summary.get("model") or "your own")
    from ipfl.training.architectures import picked_name

    return f"{picked_name(summary['input_shape'])} (picked by the shape of the points)"


def _adversary_rows(attacks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The gains of attackers, and the results of the others."""
    text = f"{len(attacks['attackers'])} of kind {attacks['kind']}"
    if attacks["fell_out"] is not None:
        text += f", out of the N_p from round {attacks['fell_out']} on"
    rows = [("attackers", text)]
    if attacks["tokens"]:
        sides = [f"{side} {figures['median']:.0f}" for side, figures in attacks["tokens"].items()]
        rows.append(("median tokens", ", ".join(sides)))
    if accuracy := attacks["honest_accuracy"]:
        rows.append(("honest clients' accuracy", f"{format_mean_std(accuracy)} % over clients"))
    return rows


def comparison_table(comparison: Comparison) -> Table:
    """A row per method; traffic is per client and round, seconds per round."""
    many = f", mean of {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    labels = {name: _on_lines(name) for name in comparison.entries}
    # Traffic on two lines leaves room for long names; rows of variants have several lines anyway.
    is_wide = any("\n" in label or len(label) > SHORT_NAME for label in labels.values())
    traffic = ["up,\ndown"] if is_wide else ["up", "down"]
    # The reference on a line of its own: the label of a variant may be long.
    over = f"PMA over\n{_on_lines(comparison.reference)}"
    numbers = ["accuracy", over, "opt-\nouts", "purity", "s", *traffic]
    title = f"Personalized accuracy in % after {comparison.config.rounds} rounds{many}"
    table = plain_table("method", *numbers, right=numbers, title=title)
    break_names(table)
    for name, entry in comparison.entries.items():
        label, figures = escape(labels[name]), entry.figures()
        if not entry.results or entry.failures:
            style = "red" if entry.failures else "dim"
            table.add_row(label, _why_empty(entry.failures), style=style)
            continue
        *cells, up, down = method_cells(figures, is_reference=name == comparison.reference)
        table.add_row(label, *cells, *((up, down) if len(traffic) == 2 else [f"{up}\n{down}"]))
    return table


def method_cells(figures: Mapping[str, Any], *, is_reference: bool) -> list[str]:
    """Accuracy, PMA, opt-outs, purity, seconds per round, and traffic up and down per client and round."""
    opt_outs = figures["opt_outs"]
    return [
        format_mean_std(figures["personalized_accuracy"]),
        "reference" if is_reference else format_mean_std(figures["pma"], signed=True),
        NO_VALUE if opt_outs is None else f"{opt_outs:.1f}".removesuffix(".0"),
        format_percent(figures["purity"]),
        f"{figures['seconds_per_round']:.2f}",
        format_size(figures["bytes_up_per_client_round"]),
        format_size(figures["bytes_down_per_client_round"]),
    ]


def _on_lines(label: str) -> str:
    """A label with each setting of a variant on a line of its own."""
    name, *settings = re.split(r":(?=[^:=]+=)", label)
    return "\n".join([name, *(f" {setting}" for setting in settings)])


def _why_empty(failures: Mapping[int, str]) -> str:
    """The reason why a method has no figures, in one word."""
    if not failures:
        return "not run"
    interrupted = all(why.startswith("interrupted") for why in failures.values())
    return "interrupted" if interrupted else "failed"


def comparison_notes(comparison: Comparison) -> list[str]:
    """Notes that explain the table."""
    clients = next(
        (r.summary["clients"] for e in comparison.entries.values() for r in e.results.values()), None
    )
    if clients is None:
        return []
    steps = {name: _last_step_text(entry.figures()) for name, entry in comparison.entries.items()}
    return [
        f"Mean ± standard deviation over {clients} clients.",
        f"PMA: points gained over {comparison.reference}; opt-outs: clients that gain none.",
        "s: seconds per round.",
        "up, down: traffic per client and round.",
        *(f"Last step of {name}: {text}." for name, text in steps.items() if text),
    ]


def methods_table() -> Table:
    """All methods."""
    table = plain_table("method", "what it does")
    for name in METHODS:
        roles = [role for role, holder in (("default", DEFAULT), ("reference", REFERENCE)) if holder == name]
        note = f" [dim]({', '.join(roles)})[/dim]" if roles else ""
        table.add_row(name, escape(method_summary(name)) + note)
    return table


def method_table(fields: Sequence[Hyperparameter]) -> Table:
    """The hyper-parameters of one method."""
    table = plain_table("hyper-parameter", "default", "what it does")
    for field in fields:
        default = NO_VALUE if field.default is None else str(field.default)
        # As one writes it in a config.
        default = default.lower() if isinstance(field.default, bool) else default
        table.add_row(field.name, escape(default), escape(field.description))
    return table


def dataset_lines() -> list[str]:
    """What each data set is, its place, origin and licence; paths and addresses unbroken."""
    from ipfl.data import DATASETS, locate

    lines = []
    for name, source in DATASETS.items():
        shape = "" if source.shape is None else f", points of {'×'.join(map(str, source.shape))}"
        classes = [] if source.classes is None else [f"{source.classes} classes{shape}"]
        place = locate(name) or ("set task.path" if source.read_user_file else "not here")
        told = [*classes, f"here: {place}", f"from: {source.origin}", f"licence: {source.license}"]
        lines += [f"{name:10}{source.summary}", *(f"{'':10}{line}" for line in told)]
    return lines


def meanings_table(header: str, meanings: Mapping[str, str]) -> Table:
    """Names with one line each."""
    table = plain_table(header, "what it does")
    for name, meaning in meanings.items():
        table.add_row(escape(name), escape(meaning))
    return table
