"""Figures of the market: who prefers what, who has which tokens, what contributions earn.

These need single clients, so each method is shown by its first seed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ipfl.figure_style import COLOURS, GREY, PALE, add_values, label_line_ends
from ipfl.ledger.schema import OPENING
from ipfl.report.run_set import RunSet, Seeds, client_name
from ipfl.results.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_SHOWN = 6
"""Methods with a panel each; further ones are left out, and the figure says so."""


def _panels(figure: Figure, names: list[str], height: float) -> list[Axes]:
    """A panel for each method, two in a row."""
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    figure.set_figheight(0.5 + rows * height)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, names, strict=False):
        axes.set_title(name)
    return panels[: len(names)]


def _first(seeds: Seeds) -> Result:
    return next(iter(seeds.values()))


def preferred_clusters(run: Result) -> tuple[list[int], list[int], NDArray[np.float64]]:
    """Rounds with bids; clients; the most wanted cluster, [client][round] (NaN: no bid)."""
    lines = [line for line in run.history if line.get("bids")]
    clients = sorted({bid.client for line in lines for bid in line["bids"]})
    place = {client: row for row, client in enumerate(clients)}
    found = np.full((len(clients), len(lines)), np.nan)
    for column, line in enumerate(lines):
        for bid in line["bids"]:
            if bid.rank == 0:
                found[place[bid.client], column] = bid.cluster
    return [line["round"] for line in lines], clients, found


def draw_preferences(figure: Figure, runs: RunSet) -> None:
    """A row for each client, a column for each round, coloured by the cluster that it wants most."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    chosen = [name for name, seeds in runs.runs.items() if has_bids(seeds)][:MAX_SHOWN]
    clusters: set[int] = set()
    for axes, name in zip(_panels(figure, chosen, 2.9), chosen, strict=True):
        run = _first(runs.runs[name])
        rounds, clients, wanted = preferred_clusters(run)
        last = np.array([row[~np.isnan(row)][-1] if (~np.isnan(row)).any() else -1 for row in wanted])
        order = np.lexsort((np.nanmean(np.where(np.isnan(wanted), -1, wanted), axis=1), last))
        clusters |= {int(k) for k in np.unique(wanted[~np.isnan(wanted)])}
        edges = [*(r - 0.5 for r in rounds), rounds[-1] + 0.5]
        axes.pcolormesh(
            edges, np.arange(len(clients) + 1), wanted[order] % len(COLOURS), cmap=ListedColormap(COLOURS),
            vmin=-0.5, vmax=len(COLOURS) - 0.5, rasterized=True,
        )  # fmt: skip
        if len(clients) <= 30:
            axes.set_yticks(
                np.arange(len(clients)) + 0.5,
                _short_names(run, [clients[row] for row in order]),
                fontsize=6.5,
            )
        axes.grid(visible=False)
        axes.set_xlabel("round")
        axes.set_ylabel("client, by its last choice")
        axes.locator_params(axis="x", integer=True)
    figure.legend(
        handles=[Patch(color=COLOURS[k % len(COLOURS)], label=f"cluster {k}") for k in sorted(clusters)],
        loc="outside lower center", ncols=6,
    )  # fmt: skip


def _short_names(run: Result, clients: list[int]) -> list[str]:
    """Names for the ticks of an axis that says that these are clients."""
    return [client_name(run, client).removeprefix("client ") for client in clients]


def has_bids(seeds: Seeds) -> bool:
    """True if clients of the first seed made bids."""
    return any(line.get("bids") for line in _first(seeds).history)


def has_tokens(seeds: Seeds) -> bool:
    """True if anyone was paid in the first seed."""
    rows = (transfer for line in _first(seeds).history for transfer in line.get("transfers", ()))
    return any(transfer.kind == "reward" for transfer in rows)


def balances_over_time(run: Result) -> tuple[list[int], NDArray[np.float64]]:
    """Rounds, from −1 (the opening) on, and balances, [round][client].

    Where the opening is not known, because the ledger is elsewhere, balances begin at 0.
    """
    moved = [run.opening, *(line.get("transfers", ()) for line in run.history)]
    sides = [
        (row, account, amount)
        for row, transfers in enumerate(moved)
        for t in transfers
        for account, amount in ((t.source, -t.amount), (t.target, t.amount))
        if account >= 0
    ]
    changes = np.zeros((len(moved), max((account for _, account, _ in sides), default=-1) + 1))
    for row, account, amount in sides:
        changes[row, account] += amount
    return [OPENING, *(line["round"] for line in run.history)], changes.cumsum(axis=0)


def draw_tokens(figure: Figure, runs: RunSet) -> None:
    """Balance of every client by round; the median, the middle half, and who ends with most and least."""
    chosen = [name for name, seeds in runs.runs.items() if has_tokens(seeds)][:MAX_SHOWN]
    for axes, name in zip(_panels(figure, chosen, 2.9), chosen, strict=True):
        run = _first(runs.runs[name])
        rounds, balances = balances_over_time(run)
        for client, values in enumerate(balances.T):
            (line,) = axes.plot(rounds, values, "-", color=PALE, linewidth=0.8)
            add_values(line, [f"{client_name(run, client)}: {values[-1]:.0f} tokens at the end"])
        low, middle, high = np.percentile(balances, (25, 50, 75), axis=1)
        axes.fill_between(rounds, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
        axes.plot(rounds, middle, "-", color=COLOURS[0])
        richest, poorest = int(balances[-1].argmax()), int(balances[-1].argmin())
        axes.plot(rounds, balances[:, richest], "--", color=COLOURS[2], linewidth=1.3)
        axes.plot(rounds, balances[:, poorest], ":", color=COLOURS[1], linewidth=1.3)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("round (−1: the opening)\nband: middle half of the clients")
        axes.set_ylabel("tokens")
        axes.margins(x=0.01)
        ends = [
            (middle[-1], "median", COLOURS[0]),
            (balances[-1, richest], client_name(run, richest), COLOURS[2]),
            (balances[-1, poorest], client_name(run, poorest), COLOURS[1]),
        ]
        label_line_ends(axes, ends, 8)


def contributions_and_rewards(run: Result) -> dict[int, tuple[float, int]]:
    """Of every client that ever trained: the sum of its contributions ψ, and of its rewards in tokens."""
    contributed: dict[int, float] = defaultdict(float)
    earned: dict[int, int] = defaultdict(int)
    for line in run.history:
        for row in line.get("contributions", ()):
            contributed[row.client] += row.psi or 0.0
        for transfer in line.get("transfers", ()):
            if transfer.kind == "reward":
                earned[transfer.client] += transfer.amount
    return {client: (contributed[client], earned[client]) for client in sorted({*contributed, *earned})}


def draw_contributions(figure: Figure, runs: RunSet) -> None:
    """The contribution of every client, and its pay."""
    from scipy.stats import spearmanr

    chosen = [name for name, seeds in runs.runs.items() if has_tokens(seeds)][:MAX_SHOWN]
    for axes, name in zip(_panels(figure, chosen, 2.9), chosen, strict=True):
        run = _first(runs.runs[name])
        found = contributions_and_rewards(run)
        x, y = np.array(list(found.values()), dtype=np.float64).reshape(-1, 2).T
        points = axes.scatter(x, y, s=22, color=COLOURS[0], alpha=0.8, linewidths=0)
        add_values(
            points,
            [f"{client_name(run, c)}: ψ {psi:.3g}, {tokens} tokens" for c, (psi, tokens) in found.items()],
        )
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set_xlabel("contribution: sum of ψ over the rounds")
        axes.set_ylabel("rewards (tokens)")
        if len(set(x)) > 1 and len(set(y)) > 1:
            axes.set_title(f"{name}: rank correlation {spearmanr(x, y).statistic:.2f}")
