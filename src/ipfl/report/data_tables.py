"""The data of every client as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from ipfl.figure_style import figure_settings, new_figure, save_figure
from ipfl.report.result_tables import NO_VALUE, plain_table, shorten
from ipfl.results.result import mean_and_spread

if TYPE_CHECKING:
    from rich.table import Table

    from ipfl.data import FederatedData

SHOWN_PARTS = ("train", "probe", "test")
MAX_ROWS = 40
"""Clients in the table on the screen."""
MAX_LABELS = 3
"""Most frequent labels of a client in the table."""
MAX_NAMES = 60
"""Names along an axis of the picture; with more of them, some are left out."""
MAX_NUMBERS = 400
"""Cells of the picture with a number in each."""
MAX_RANGES = 8
"""Ranges that predicted numbers are counted in."""
LABEL_LENGTH = 24
"""Characters of the name of a client, a class or a data set."""
CHARACTERS_PER_INCH = 9
"""Along the labels of the picture."""


@dataclass(frozen=True, eq=False)
class Counted:
    """The data of all clients, a row for each."""

    names: list[str]
    sizes: NDArray[np.int64]
    """Points of each of `SHOWN_PARTS`."""
    counts: NDArray[np.int64]
    """Points in train and probe of each class, label or range of numbers."""
    label_names: Sequence[str]
    """Classes, labels, or ranges of the first number that is predicted."""
    what: Literal["classes", "labels", "ranges"]
    """They are."""
    values: list[NDArray[np.float64]]
    """The first number that is predicted, of every point; nothing where there are labels."""
    distributions: list[int | None]
    """The hidden distribution that most points are of."""


def count_labels(data: FederatedData) -> Counted:
    """The data of every client before the first round, the unseen ones included."""
    named, kind = data.client_names, data.target.kind
    members = sorted((*data.clients, *data.unseen))
    known = [data.parts(client) for client in members]
    targets = [np.concatenate([parts.train.y, parts.probe.y]) for parts in known]
    what: Literal["classes", "labels", "ranges"] = "classes"
    label_names, values = data.class_names, []
    if kind == "regression":
        what, values = "ranges", [np.asarray(y.reshape(len(y), -1)[:, 0], np.float64) for y in targets]
        bounds = np.histogram_bin_edges(np.concatenate(values), MAX_RANGES)
        counts = [np.histogram(numbers, bounds)[0] for numbers in values]
        label_names = [f"{low:.4g} … {high:.4g}" for low, high in pairwise(bounds)]
    elif kind == "multilabel":
        what, counts = "labels", [y.sum(axis=0) for y in targets]
    else:
        counts = [np.bincount(y, minlength=data.classes) for y in targets]
    names = [
        shorten(named.get(client, str(client)), LABEL_LENGTH) + (" (unseen)" if client in data.unseen else "")
        for client in members
    ]
    sizes = np.array([[data.sizes(client)[part] for part in SHOWN_PARTS] for client in members])
    distributions = [data.majority(client) for client in members]
    return Counted(names, sizes, np.array(counts, np.int64), label_names, what, values, distributions)


def clients_table(data: FederatedData, every: Counted) -> Table:
    """A row per client, the first of them if there are many, and one with the sums."""
    has_numbers, has_kinds = every.what == "ranges", any(one is not None for one in every.distributions)
    numbers = [*SHOWN_PARTS, *([] if has_numbers else [every.what])]
    told = "mean ± spread, from … to" if has_numbers else "most frequent labels"
    kinds = ["distribution"] if has_kinds else []
    title = f"{data.name}, {data.partition}: points per client"
    table = plain_table("client", *numbers, *kinds, told, right=numbers, title=title)

    def add(name: str, sizes: Any, counts: Any, values: Any, kind: str) -> None:
        present = [] if has_numbers else [str(np.count_nonzero(counts))]
        last = _range(values) if has_numbers else _most_frequent(counts, every.label_names)
        table.add_row(escape(name), *map(str, sizes), *present, *[kind] * has_kinds, escape(last))

    for row, name in enumerate(every.names[:MAX_ROWS]):
        values, kind = every.values[row] if has_numbers else None, every.distributions[row]
        add(name, every.sizes[row], every.counts[row], values, NO_VALUE if kind is None else str(kind))
    if len(every.names) > MAX_ROWS:
        table.add_row(f"… {len(every.names) - MAX_ROWS} more")
    table.add_section()
    values = np.concatenate(every.values) if has_numbers else None
    add("all", every.sizes.sum(axis=0), every.counts.sum(axis=0), values, "")
    return table


def _range(values: NDArray[np.float64]) -> str:
    return f"{mean_and_spread(values.mean(), values.std())}, {values.min():.4g} … {values.max():.4g}"


def _most_frequent(counts: Any, labels: Sequence[str]) -> str:
    order = np.argsort(-counts, kind="stable")[:MAX_LABELS]
    return ", ".join(
        f"{shorten(labels[label], LABEL_LENGTH)} ({counts[label]})" for label in order if counts[label]
    )


def plot_clients(data: FederatedData, every: Counted, file: Path) -> None:
    """Draws how many points of each label (or range of numbers) every client has to train on, as a PNG.

    A row per client with its number of points, a column per label. The darker a cell, the larger the share
    among the client's points; white: none.
    """
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    table, label = every.counts, "range" if every.what == "ranges" else "label"
    points = every.sizes[:, 0] + every.sizes[:, 1]
    shares = 100 * table / np.maximum(points, 1)[:, None]
    clients, labels = table.shape
    names = [shorten(name, LABEL_LENGTH) for name in every.label_names]
    size = float(np.clip(3 + 0.45 * labels, 6, 14)), float(np.clip(2 + 0.27 * clients, 3, 14))
    with figure_settings():
        figure = new_figure(*size)
        axes = figure.subplots()
        # The lightest blue is not white: that stands for no points.
        colours = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.12, 1, 256)))
        drawn = axes.pcolormesh(
            np.ma.masked_equal(shares, 0), cmap=colours, vmin=0, edgecolors="white", linewidth=0.5
        )
        axes.invert_yaxis()
        rows = [f"{name}  ({count})" for name, count in zip(every.names, points, strict=True)]
        for axis, texts in ((axes.yaxis, rows), (axes.xaxis, names)):
            step = -(-len(texts) // MAX_NAMES)
            axis.set_ticks(np.arange(0, len(texts), step) + 0.5, texts[::step])
        # Names stand beside each other only if there is room for all of them.
        is_crowded = max(map(len, names)) * labels > CHARACTERS_PER_INCH * (size[0] - 3)
        axes.tick_params(axis="x", rotation=90 if is_crowded else 0, length=0)
        if table.size <= MAX_NUMBERS:
            for client, column in zip(*np.nonzero(table), strict=True):
                colour = "white" if shares[client, column] > 0.6 * shares.max() else "#1a1a1a"
                text = str(table[client, column])
                axes.text(column + 0.5, client + 0.5, text, ha="center", va="center", color=colour)
        axes.set(xlabel=label, ylabel="client  (its training points)")
        title = f"{shorten(data.name, LABEL_LENGTH)}: training points by {label}, {clients} clients"
        figure.suptitle(title, x=0.01, ha="left")
        figure.colorbar(drawn, ax=axes, label="share of the client's points (%)")
    save_figure(figure, file)
