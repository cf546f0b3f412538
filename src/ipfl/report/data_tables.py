"""The data of every client as a table and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from ipfl.config.task_section import TargetKind
from ipfl.figure_style import figure_settings, new_figure, save_figure
from ipfl.report.result_tables import NO_VALUE, plain_table, shorten
from ipfl.results.result import mean_and_spread

if TYPE_CHECKING:
    from rich.table import Table

    from ipfl.data import FederatedData

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
class ClientCounts:
    """The data of one client."""

    client: int
    name: str
    sizes: Mapping[str, int]
    labels: NDArray[np.int64]
    """Number of points of each class, label or range of numbers in train and probe."""
    is_unseen: bool
    distribution: int | None
    values: NDArray[Any]
    """The first number that is predicted, of each of these points; empty where labels are."""

    @property
    def points(self) -> int:
        """In train and probe; of several labels, a point may have many."""
        return self.sizes["train"] + self.sizes["probe"]


@dataclass(frozen=True, eq=False)
class Counted:
    """The data of all clients."""

    clients: list[ClientCounts]
    label_names: Sequence[str]
    """Classes, labels, or ranges of the first number that is predicted."""
    what: str
    """They are, in the plural."""


def count_labels(data: FederatedData) -> Counted:
    """The data of every client before the first round, the unseen ones included."""
    names, kind = data.client_names, data.target.kind
    members = sorted((*data.clients, *data.unseen))
    targets = {}
    for client in members:
        parts = data.parts(client)
        targets[client] = np.concatenate([parts.train.y, parts.probe.y])
    ranges = _ranges(targets.values()) if kind == "regression" else np.empty(0)
    counted = [
        ClientCounts(
            client,
            names.get(client, str(client)),
            data.sizes(client),
            _count(targets[client], data.classes, kind, ranges),
            client in data.unseen,
            data.majority(client),
            _first_numbers(targets[client]) if kind == "regression" else np.empty(0),
        )
        for client in members
    ]
    if kind == "regression":
        bounds = [f"{bound:.4g}" for bound in ranges]
        return Counted(counted, [f"{low} … {high}" for low, high in pairwise(bounds)], "ranges")
    return Counted(counted, data.class_names, "labels" if kind == "multilabel" else "classes")


def _ranges(targets: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """Bounds of equal ranges of the first number that is predicted, over all clients."""
    return np.histogram_bin_edges(np.concatenate([_first_numbers(y) for y in targets]), MAX_RANGES)


def _first_numbers(y: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(y.reshape(len(y), -1)[:, 0], np.float64)


def _count(y: NDArray[Any], classes: int, kind: TargetKind, ranges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Points of each class, label or range."""
    if kind == "classes":
        return np.bincount(y, minlength=classes)
    if kind == "multilabel":
        return np.asarray(y.sum(axis=0), np.int64)
    return np.histogram(_first_numbers(y), ranges)[0].astype(np.int64)


def clients_table(data: FederatedData, every: Counted) -> Table:
    """A row per client, the first of them if there are many, and one with the sums."""
    counted, has_numbers = every.clients, every.what == "ranges"
    numbers = ["train", "probe", "test", *([] if has_numbers else [every.what])]
    has_kinds = any(one.distribution is not None for one in counted)
    kinds = ["distribution"] if has_kinds else []
    told = "mean ± spread, from … to" if has_numbers else "most frequent labels"
    title = f"{data.name}, {data.partition}: points per client"
    table = plain_table("client", *numbers, *kinds, told, right=numbers, title=title)
    for one in counted[:MAX_ROWS]:
        kind = [NO_VALUE if one.distribution is None else str(one.distribution)] if has_kinds else []
        name = shorten(one.name, LABEL_LENGTH) + (" (unseen)" if one.is_unseen else "")
        table.add_row(escape(name), *_sizes([one]), *_told_cells(every, one.labels, one.values, kind))
    if len(counted) > MAX_ROWS:
        table.add_row(f"… {len(counted) - MAX_ROWS} more")
    table.add_section()
    labels = np.sum([one.labels for one in counted], axis=0)
    values = np.concatenate([one.values for one in counted])
    table.add_row("all", *_sizes(counted), *_told_cells(every, labels, values, [""] * len(kinds)))
    return table


def _sizes(clients: Sequence[ClientCounts]) -> list[str]:
    return [str(sum(one.sizes[part] for one in clients)) for part in ("train", "probe", "test")]


def _told_cells(every: Counted, labels: Any, values: NDArray[Any], kind: list[str]) -> list[str]:
    """The last cells of a row: how many labels there are, the distribution, and what there is of them."""
    if every.what == "ranges":
        told = mean_and_spread(values.mean(), values.std())
        return [*kind, f"{told}, {values.min():.4g} … {values.max():.4g}"]
    return [str(np.count_nonzero(labels)), *kind, escape(_most_frequent(labels, every.label_names))]


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

    counted, label = every.clients, "range" if every.what == "ranges" else "label"
    table = np.stack([one.labels for one in counted])
    shares = 100 * table / np.maximum([[one.points] for one in counted], 1)
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
        rows = [f"{shorten(one.name, LABEL_LENGTH)}  ({one.points})" for one in counted]
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
