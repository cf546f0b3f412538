"""benchmarks/README.md, made from benchmarks/results.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
MEGABYTE = 2**20
BUSY = 1.5
"""Load above the number of cores from which on a part is marked: others wanted the machine as well."""

INTRODUCTION = """# Benchmarks

Made by `make bench` from `benchmarks/results.json`; not edited by hand. `make bench PARTS="bank clients"`
measures some parts again and leaves the others as they are. The module named in each part says how it is
measured.

Ratios are between runs that took turns, so that a busy moment hits both; in brackets the least and the most
of the turns. Seconds are those of the machine at that time and compare within a table only. `load` is the
number of processes that wanted a core (over a minute), at the beginning and at the end of a part, the part's
own included.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole document."""
    machine = results["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [
        INTRODUCTION,
        f"Machine: {machine['cores']} cores, {machine['processor']}; Python {machine['python']}, {packages}.",
    ]
    for name, (title, body) in SECTIONS.items():
        if part := results["parts"].get(name):
            lines += ["", f"## {title}", "", conditions(part, machine["cores"]), ""]
            lines += body(part["rows"])
    return "\n".join(lines) + "\n"


def conditions(part: Row, cores: int) -> str:
    """When it was measured, and whether others wanted the machine."""
    before, after = part["load"]
    busy = " **The machine was busy with other work.**" if before > cores + BUSY else ""
    return f"{part['date']}, {part['seconds']:.0f} s, load {before} to {after}.{busy}"


def table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def spread(ratio: float, least: float, most: float) -> str:
    """A ratio and its range."""
    return f"{ratio:.2f}× ({least:.2f} to {most:.2f})"


def steps(rows: Sequence[Row]) -> Iterator[str]:
    """Our step beside the plain loop."""
    names = list(rows[0]["ratios"])
    yield "`round.py`, one core, processor time. How many times as fast as the plain loop:"
    yield ""
    yield from table(
        ["image", "batch", *names[1:]],
        (
            [row["size"], str(row["batch"]), *(spread(*row["ratios"][name]) for name in names[1:])]
            for row in rows
        ),
    )
    yield ""
    yield "`step alone` is forward, backward and update on batches that are ready. Where our time goes:"
    yield ""
    yield from table(
        [
            "image",
            "batch",
            "outside of the step",
            "of the products' rate in these shapes",
            "of a large product's rate",
        ],
        (
            [
                row["size"],
                str(row["batch"]),
                f"{row['outside of the step']:.1%}",
                f"{row['rate in these shapes']:.0%}",
                f"{row['rate of a large product']:.0%} of {row['Gflop/s']:.0f} Gflop/s",
            ]
            for row in rows
        ),
    )
    if "ours, bf16" not in names:
        yield ""
        yield "bfloat16 was not measured: this processor does not compute in it."
    yield ""
    yield "Goals: float32 at least 1.7× the plain loop, bf16 2.3×; 85 % of the products' rate; 3 % outside."


def cores(rows: Sequence[Row]) -> Iterator[str]:
    """All cores beside one."""
    for row in rows:
        yield f"`round.py`, 32×32×3, batch 50, by the clock, {row['cores']} cores:"
        yield ""
        yield f"- beside the plain loop with all its threads: {spread(*row['beside the plain loop'])}"
        yield f"- beside one worker: {spread(*row['beside one worker'])}. Goal: 1.9×"
        yield (
            f"- control, as many plain processes side by side instead of one after the other: "
            f"{spread(*row['control'])}"
        )


def frameworks(rows: Sequence[Row]) -> Iterator[str]:
    """Other frameworks."""
    yield "`frameworks.py`, one core, by the clock; the same network, samples and steps."
    yield ""
    yield from table(
        ["image", "batch", "", "round, s", "beside the plain loop"],
        (
            [
                row["size"],
                str(row["batch"]),
                row["name"],
                f"{row['seconds']:.2f}" if "seconds" in row else "–",
                spread(row["ratio"], row["least"], row["most"]) if "ratio" in row else row["error"],
            ]
            for row in rows
        ),
    )


def clients(rows: Sequence[Row]) -> Iterator[str]:
    """Set-up, round and memory by the number of clients."""
    yield (
        "`clients.py`: 10 clients at work, by the clock. A fifth of a client's samples is kept to score "
        "models; 500 are images of 32×32×3, otherwise of 28×28."
    )
    yield ""
    yield from table(
        [
            "clients",
            "samples each",
            "data, s",
            "set-up, s: FedAvg",
            "IP-FL",
            "round, s: FedAvg",
            "IP-FL",
            "IP-FL / FedAvg",
            "peak, MB",
        ],
        (
            [
                f"{row['clients']:,}",
                str(row["samples"]),
                f"{row['data']:.1f}",
                *(f"{seconds:.1f}" for seconds in row["set-up"].values()),
                *(f"{seconds:.2f}" for seconds in row["round"].values()),
                spread(row["ratio"], row["least"], row["most"]),
                f"{row['peak'] / MEGABYTE:,.0f}",
            ]
            for row in rows
        ),
    )
    yield ""
    yield "Goals: 1.3× for IP-FL; 50,000 clients with 20 samples within 2 GB, set up within 10 s."
    yield ""
    yield (
        "What the ratio is made of: the query, a fifth to a quarter of the training, where clients have more "
        "samples than a few; and what the server does for every update, whatever it was trained on: "
        "comparing it with the others, checkpoint, ledger. With 16 samples to train on that weighs more "
        "than the training."
    )


def methods(rows: Sequence[Row]) -> Iterator[str]:
    """Every method beside FedAvg."""
    yield "`methods.py`: seconds of a round beside FedAvg's on the same work, one core."
    yield ""
    header = [
        "method",
        "round",
        "first round",
        "server's share",
        "up, MB",
        "down, MB",
        "peak, MB",
        "disk, MB",
    ]
    yield from table(
        header,
        (
            [
                row["name"],
                spread(row["ratio"], row["least"], row["most"]),
                f"{row['first']:.2f}×",
                f"{row['server']:.2f}",
                f"{row['up'] / 1e6:.1f}",
                f"{row['down'] / 1e6:.1f}",
                f"{row['peak'] / MEGABYTE:,.0f}" if "peak" in row else "–",
                f"{row['disk'] / 1e6:.1f}" if "disk" in row else "–",
            ]
            for row in rows
        ),
    )
    yield ""
    yield (
        "**server's share** is the part of the ratio that is spent on the server; **up**, **down**: what a "
        "client at work sends and gets in a round; **peak**: all processes, 1,000 clients, 10 at work; "
        "**disk**: what is kept of each client that has been at work."
    )


def bank(rows: Sequence[Row]) -> Iterator[str]:
    """The market of 100,000 clients, and its transfers in the store."""
    yield "`bank.py`: a round of the market for 100,000 clients and 16 clusters, half of them with a seat."
    yield ""
    markets = [row for row in rows if "bids" in row]
    yield from table(
        ["bids each", "transfers", "s", "processor s", *markets[0]["steps"], "peak, MB", "without imports"],
        (
            [
                str(row["bids"]),
                f"{row['transfers']:,}",
                f"{row['seconds']:.2f}",
                f"{row['processor']:.2f}",
                *(f"{seconds:.2f}" for seconds in row["steps"].values()),
                f"{row['peak']:,.0f}",
                f"{row['without imports']:,.0f}",
            ]
            for row in markets
        ),
    )
    yield ""
    yield "The transfers of a round with one bid each, in one transaction:"
    yield ""
    yield from table(
        ["rows", "s", "rows/s", "processor s", "peak, MB"],
        (
            [
                f"{row['rows']:,}",
                f"{row['seconds']:.1f}",
                f"{row['rows'] / row['seconds']:,.0f}",
                f"{row['processor']:.1f}",
                f"{row['peak']:,.0f}",
            ]
            for row in rows
            if "bids" not in row
        ),
    )


def comparisons(rows: Sequence[Row]) -> Iterator[str]:
    """Runs side by side."""
    for row in rows:
        yield (
            f"`comparisons.py`: {row['runs']} runs on {row['cores']} cores, one process each, beside one run "
            f"after the other on all cores: {spread(row['gain'], row['least'], row['most'])}. Goal: 1.8×. "
            f"Control, plain processes at the same time: "
            f"{spread(row['control'], row['control least'], row['control most'])}."
        )


SECTIONS: Mapping[str, tuple[str, Callable[[Sequence[Row]], Iterator[str]]]] = {
    "steps": ("Our step and the plain loop", steps),
    "cores": ("All cores", cores),
    "frameworks": ("Other frameworks", frameworks),
    "clients": ("Many clients", clients),
    "comparisons": ("Comparisons", comparisons),
    "methods": ("Every method", methods),
    "bank": ("The market", bank),
}
"""Title and text of each part, in the order of the document."""
