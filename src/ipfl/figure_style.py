"""How figures look and how they are saved: as PNG and PDF files, or as SVG text with values under the mouse.

matplotlib is imported when a figure is made. `pyplot` is never used: it keeps figures and settings for the
whole process.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from ipfl.system.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart by colour-blind readers too; without its yellow, too pale on white."""
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY, PALE = "#555555", "#c4c4c4"
"""For what is not data, and for data that only show where the others are."""
FIGURE_WIDTH = 7.5
"""Inches: the text of a printed page."""
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "svg.fonttype": "none",  # text that can be searched and copied
}


class LineStyle(NamedTuple):
    """How the line of one method looks, the same in every figure."""

    colour: str
    line: str
    marker: str


def line_style(number: int) -> LineStyle:
    """The style of the line with this number; when all colours are used, the line changes."""
    turn, colour = divmod(number, len(COLOURS))
    return LineStyle(COLOURS[colour], LINE_STYLES[turn % len(LINE_STYLES)], MARKERS[colour])


@contextmanager
def figure_settings() -> Iterator[None]:
    """Inside, everything that is drawn looks as it should; figures are also saved inside."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        yield


def new_figure(width: float = FIGURE_WIDTH, height: float = 4.2) -> Figure:
    """An empty figure; its size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure whole or not at all, in the format of the file's suffix; equal figures, equal bytes."""
    import matplotlib as mpl

    kind = path.suffix.lstrip(".")
    # No date, and ids from the name: nothing but the numbers decides the bytes.
    by_kind: dict[str, dict[str, Any]] = {
        "png": {"pil_kwargs": {"optimize": True}},
        "pdf": {"metadata": {"CreationDate": None}},
        "svg": {"metadata": {"Date": None}},
    }
    with figure_settings(), mpl.rc_context({"svg.hashsalt": path.stem}), atomic_write(path) as draft:
        figure.savefig(draft, format=kind, dpi=150, **by_kind[kind])


def add_values(artist: Artist, values: Sequence[str]) -> None:
    """Says what the parts of something drawn mean: shown under the mouse in `svg_text`.

    Args:
        artist: A line with markers, a scatter or a patch.
        values: A text for each of its markers, or a single one for the whole.
    """
    figure = artist.get_figure()
    assert figure is not None
    known: dict[str, list[str]] = figure.__dict__.setdefault("_ipfl_values", {})
    name = f"values-{len(known)}"
    known[name] = list(values)
    artist.set_gid(name)


def svg_text(figure: Figure, name: str) -> str:
    """A figure as an `<svg>` element to stand in a page.

    Args:
        figure: What to draw.
        name: Of the figure; makes its ids differ from those of other figures of the page.
    """
    import matplotlib as mpl

    drawn = io.StringIO()
    with figure_settings(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Type": None})
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(drawn.getvalue())
    root.attrib.pop("height", None)
    root.attrib.pop("width", None)
    root.set("style", "width:100%;height:auto")
    root.set("role", "img")
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    elements = {element.get("id"): element for element in root.iter()}
    for key, values in figure.__dict__.get("_ipfl_values", {}).items():
        if key in elements:
            _set_titles(elements[key], values)
    _rename_ids(root, name)
    return ElementTree.tostring(root, encoding="unicode")


SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def _set_titles(group: ElementTree.Element, values: Sequence[str]) -> None:
    """A title for every marker, or for the whole if there are not as many markers as values."""
    markers = list(group.iter(f"{{{SVG}}}use"))
    if len(markers) == len(values):
        for marker, value in zip(markers, values, strict=True):
            ElementTree.SubElement(marker, f"{{{SVG}}}title").text = value
    elif len(values) == 1:
        title = ElementTree.Element(f"{{{SVG}}}title")
        title.text = values[0]
        group.insert(0, title)


def _rename_ids(root: ElementTree.Element, name: str) -> None:
    """Puts the name before every id and before what refers to one."""
    prefix = re.sub(r"[^a-zA-Z0-9-]", "-", name)
    for element in root.iter():
        if element.get("id"):
            element.set("id", f"{prefix}-{element.get('id')}")
        for key, value in element.attrib.items():
            if key == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(key, f"#{prefix}-{value[1:]}")
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{prefix}-"))


def set_log_scale(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Makes axes logarithmic, with ticks such as 10⁻³ (matplotlib's own need its formulas)."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    superscripts = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def format_tick(value: float, place: int | None = None) -> str:
        power = f"{value:.0e}".split("e")
        return "10" + str(int(power[1])).translate(superscripts) if power[0] == "1" else ""

    for wanted, axis, set_scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if wanted:
            set_scale("log")
            axis.set_major_formatter(FuncFormatter(format_tick))
            axis.set_minor_formatter(NullFormatter())


def label_line_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], size: float = 8.5) -> None:
    """Writes the names of lines beside their right ends, apart from each other, instead of a legend.

    Args:
        axes: Whose limits are final.
        ends: Height at the right end, text and colour of each line.
        size: Of the letters, in points.
    """
    low, high = axes.get_ylim()
    root = axes.get_figure(root=True)
    assert root is not None
    apart = 1.5 * size / 72 / (axes.bbox.height / root.dpi) * (high - low)
    for (height, text, colour), place in zip(
        ends, spread_apart([end[0] for end in ends], apart, low, high), strict=True
    ):
        axes.annotate(
            text, (1, height), (1.03, place), xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"), color=colour, fontsize=size, va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0,
                "relpos": (0, 0.5),  # to the text's left edge; its middle may be beyond another text
            },
        )  # fmt: skip


def spread_apart(heights: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places near these heights, `apart` from each other at least, in the same order."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    places = [heights[i] for i in order]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + apart)
    if places and places[-1] > high:  # no room at the top: all that is needed moves down
        places[-1] = max(high, low + apart * (len(places) - 1))
        for i in range(len(places) - 2, -1, -1):
            places[i] = min(places[i], places[i + 1] - apart)
    found = [0.0] * len(heights)
    for i, place in zip(order, places, strict=True):
        found[i] = place
    return found
