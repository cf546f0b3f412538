"""Who has what: the data of every client as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from ipfl.data.federated import class_names, client_names
from ipfl.report.tables import NO_VALUE, plain_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
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
NAME_LENGTH = 24
CHARACTERS_PER_INCH = 9
"""Along the labels of the picture."""


@dataclass(frozen=True, eq=False)
class ClientCounts:
    """What one client has."""

    client: int
    name: str
    sizes: Mapping[str, int]
    labels: NDArray[np.int64]
    """Number of points of each class in train and probe."""
    is_unseen: bool
    distribution: int | None


def count_labels(data: FederatedData) -> list[ClientCounts]:
    """What every client has before the first round, the unseen ones included."""
    names, counted = client_names(data), []
    for client in sorted((*data.clients, *data.unseen)):
        parts = data.parts(client)
        y = np.concatenate([parts.train.y, parts.probe.y])
        counted.append(
            ClientCounts(
                client,
                names.get(client, str(client)),
                data.sizes(client),
                np.bincount(y, minlength=data.classes),
                client in data.unseen,
                data.majority(client),
            )
        )
    return counted


def clients_table(data: FederatedData, counted: Sequence[ClientCounts]) -> Table:
    """A row per client, the first of them if there are many, and one with the sums."""
    numbers = ["train", "probe", "test", "classes"]
    has_kinds = any(one.distribution is not None for one in counted)
    kinds = ["distribution"] if has_kinds else []
    title = f"{data.name}, {data.partition}: points per client"
    table = plain_table("client", *numbers, *kinds, "most frequent labels", right=numbers, title=title)
    labels = class_names(data)
    for one in counted[:MAX_ROWS]:
        kind = [NO_VALUE if one.distribution is None else str(one.distribution)] if has_kinds else []
        name = _shortened(one.name) + (" (unseen)" if one.is_unseen else "")
        table.add_row(escape(name), *_numbers(one), *kind, escape(_most_frequent(one.labels, labels)))
    if len(counted) > MAX_ROWS:
        table.add_row(f"… {len(counted) - MAX_ROWS} more")
    table.add_section()
    everyone = sum(one.labels for one in counted)
    sums = [str(sum(one.sizes[part] for one in counted)) for part in numbers[:3]]
    blank = [""] * len(kinds)
    table.add_row(
        "all", *sums, str(np.count_nonzero(everyone)), *blank, escape(_most_frequent(everyone, labels))
    )
    return table


def _numbers(one: ClientCounts) -> list[str]:
    sizes = [str(one.sizes[part]) for part in ("train", "probe", "test")]
    return [*sizes, str(np.count_nonzero(one.labels))]


def _most_frequent(counts: Any, labels: Sequence[str]) -> str:
    order = np.argsort(-counts, kind="stable")[:MAX_LABELS]
    return ", ".join(f"{_shortened(labels[label])} ({counts[label]})" for label in order if counts[label])


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def plot_clients(data: FederatedData, counted: Sequence[ClientCounts], file: Path) -> None:
    """Draws how many points of each label every client has to train on, as a PNG.

    A row per client with its number of points, a column per label. The darker a cell, the larger the share
    among the client's points; white: none.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    table = np.stack([one.labels for one in counted])
    shares = 100 * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    clients, labels = table.shape
    size = (float(np.clip(3 + 0.45 * labels, 6, 14)), float(np.clip(1.6 + 0.27 * clients, 3, 14)))
    title = f"{_shortened(data.name)}: training points by label, {clients} clients"
    with mpl.rc_context({"font.size": 10, "axes.titlesize": 11}):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        cells = np.ma.masked_equal(shares, 0)
        drawn = axes.pcolormesh(
            cells, cmap=_colours(), vmin=0, vmax=shares.max(), edgecolors="white", linewidth=0.5
        )
        axes.invert_yaxis()
        names = [f"{_shortened(one.name)}  ({one.labels.sum()})" for one in counted]
        _name_axes(axes, names, [_shortened(name) for name in class_names(data)], size[0])
        if table.size <= MAX_NUMBERS:
            _write_counts(axes, table, shares / shares.max())
        axes.set(xlabel="label", ylabel="client  (its training points)")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes.spines[:].set_color("#cccccc")
        figure.colorbar(
            drawn, ax=axes, label="share of the client's points (%)", fraction=0.05, pad=0.02, aspect=30
        )
        figure.savefig(file, dpi=150, format="png")
        plt.close(figure)


def _colours() -> Colormap:
    """Blues whose lightest is not white: that stands for no points."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    return ListedColormap(mpl.colormaps["Blues"](np.linspace(0.12, 1, 256)))


def _name_axes(axes: Axes, clients: Sequence[str], labels: Sequence[str], width: float) -> None:
    for axis, names in ((axes.yaxis, clients), (axes.xaxis, labels)):
        step = -(-len(names) // MAX_NAMES)
        axis.set_ticks(np.arange(0, len(names), step) + 0.5, names[::step])
    if max(map(len, labels)) * len(labels) > CHARACTERS_PER_INCH * (width - 3):
        axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=0)


def _write_counts(axes: Axes, table: NDArray[np.int64], darkness: NDArray[np.float64]) -> None:
    for client, label in zip(*np.nonzero(table), strict=True):
        colour = "white" if darkness[client, label] > 0.6 else "#1a1a1a"
        text = str(table[client, label])
        axes.text(label + 0.5, client + 0.5, text, ha="center", va="center", color=colour, fontsize=8)
