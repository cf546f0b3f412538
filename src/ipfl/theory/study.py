"""Studies: numbers that are computed once, and a figure that is drawn from them alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from ipfl.figure_style import LineStyle, line_style
from ipfl.theory.monte_carlo import Point

Numbers = dict[str, Any]
"""Content that JSON can hold."""


@dataclass(frozen=True)
class Study:
    """A statement of the paper, checked by numbers."""

    summary: str
    """The statement, in one line."""
    place: str
    """Its place in the paper."""
    compute: Callable[[int, int], Numbers]
    """From seed and number of trials."""
    draw: Callable[[Figure, Numbers], None]
    """Draws what `compute` returned."""
    height: float = 3.4
    """Of the figure, in inches."""


STYLES: dict[str, LineStyle] = {
    name: line_style(number) for number, name in enumerate(("local", "federated", "clustered"))
}
"""The same procedure looks the same in every figure."""


def draw_series(
    axes: Axes, x: list[float], points: list[Point], style: LineStyle, line: str, label: str | None = None
) -> None:
    """A formula as a line, and the simulation as marks with their 95 % bands."""
    axes.plot(x, [point["formula"] for point in points], line, color=style.colour, label=label)
    low = [point["mean"] - point["low"] for point in points]
    high = [point["high"] - point["mean"] for point in points]
    axes.errorbar(
        x, [point["mean"] for point in points], (low, high), fmt=style.marker, color=style.colour,
        markersize=3.5, capsize=2, elinewidth=1,
    )  # fmt: skip


def draw_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, below them."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
