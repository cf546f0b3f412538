"""What people see: numbers in tables, lines of progress, plots that show what they should."""

import io

import numpy as np
import pytest
from rich.console import Console

from ipfl.core import Event
from ipfl.methods import REFERENCE
from ipfl.report import plots, tables
from ipfl.report.progress import MAX_EVENTS, Bar, Lines, observer
from ipfl.runs.comparison import Comparison, Entry
from ipfl.runs.config import Config
from ipfl.runs.metrics import Evaluation
from ipfl.runs.result import Result


def terminal(*, live=False, width=80):
    return Console(file=io.StringIO(), force_terminal=live, width=width, color_system=None)


def said(console):
    return console.file.getvalue()


def line(round, accuracy=None, events=()):
    found = {"round": round, "events": list(events)}
    if accuracy is not None:
        found["evaluation"] = {"personalized_accuracy": {"mean": accuracy, "std": 0.0}}
    return found


def result(name, seed, by_round, reference=None):
    """A run whose evaluations are given: round → accuracy of clients 0, 1, ….

    10 rounds in 5 s make 0.5 s a round; 80 kB up over 10 rounds and 4 clients make 2 kB each.
    """
    evaluations = {
        r: Evaluation(r, dict(enumerate(accuracies)), {}, None, None) for r, accuracies in by_round.items()
    }
    last = evaluations[max(evaluations)]
    summary = {
        "method": name, "dataset": "toy", "partition": "10:90", "clients": 4, "clusters": None, "rounds": 10,
        "seed": seed, **last.figures(reference), "left": 0, "bytes_up": 80_000, "bytes_down": 40,
        "seconds": 5.0, "interrupted": False,
    }  # fmt: skip
    return Result(summary, [], evaluations, None)


class Stub:
    def __init__(self, name):
        self.name = name


def comparison(**entries):
    return Comparison(Config(), (0, 1), entries)


@pytest.fixture
def two():
    """Reference 50 % everywhere; the other gains +10, +20, 0 and −10 points: mean 5, two opt-outs."""
    rho = dict.fromkeys(range(4), 0.5)
    entries = {REFERENCE: Entry(Stub(REFERENCE)), "other": Entry(Stub("other"))}
    for seed in (0, 1):
        entries[REFERENCE].results[seed] = result(REFERENCE, seed, {4: [0.3] * 4, 9: [0.5] * 4})
        entries["other"].results[seed] = result("other", seed, {2: [0.2] * 4, 9: [0.6, 0.7, 0.5, 0.4]}, rho)
        entries["other"].pma[seed] = {0: 0.1, 1: 0.2, 2: 0.0, 3: -0.1}
    return comparison(**entries)


class TestNumbers:
    @pytest.mark.parametrize(
        "nbytes, text",
        [
            (0, "0 B"), (4.5, "4 B"), (999, "999 B"), (1000, "1.0 kB"), (99_400, "99.4 kB"),
            (179_860, "180 kB"), (999_600, "1.0 MB"), (2.5e9, "2.5 GB"), (None, "–"),
        ],
    )  # fmt: skip
    def test_size(self, nbytes, text):
        assert tables.size(nbytes) == text

    def test_percent(self):
        assert tables.percent(0.12345) == "12.3"
        assert tables.percent(None) == "–"
        assert tables.spread({"mean": 0.5, "std": 0.025}) == "50.0 ± 2.5"
        assert tables.spread({"mean": 0.05, "std": 0}, signed=True) == "+5.0 ± 0.0"
        assert tables.spread(None) == "–"


class TestTables:
    def test_comparison(self, two):
        console = terminal()
        console.print(tables.comparison_table(two))
        rows = [" ".join(row.split()) for row in said(console).splitlines()]
        # Accuracy of the other: mean of 60, 70, 50, 40 is 55, deviation √(25+225+25+225)/2 = 11.2.
        assert "other 55.0 ± 11.2 +5.0 ± 11.2 2 – 0.50 2.0 kB 1 B" in rows
        assert f"{REFERENCE} 50.0 ± 0.0 reference – – 0.50 2.0 kB 1 B" in rows

    def test_fits_into_80_columns(self, two):
        entries = {**two.entries, "a_long_name": two.entries["other"]}
        console = terminal(width=200)
        console.print(tables.comparison_table(comparison(**entries)))
        assert max(len(row.rstrip()) for row in said(console).splitlines()) <= 80

    def test_failures_have_no_figures(self, two):
        two.entries["other"].failures[1] = "ValueError: no\nmore"
        two.entries["late"] = Entry(Stub("late"))
        two.entries["cut"] = Entry(Stub("cut"), failures={0: "interrupted after 3 rounds"})
        console = terminal()
        console.print(tables.comparison_table(two))
        rows = {row.split()[0]: row.split()[1:] for row in said(console).splitlines() if row.strip()}
        assert (rows["other"], rows["late"], rows["cut"]) == (["failed"], ["not", "run"], ["interrupted"])

    def test_run(self):
        summary = result("m", 3, {9: [0.5, 0.7]}).summary
        summary |= {"clusters": 2, "cluster_accuracy": [[0.9, 0.1], [0.2, 0.8]], "purity": 0.75}
        console = terminal()
        console.print(tables.run_table(summary))
        text = said(console)
        assert "60.0 ± 10.0 % over clients" in text
        assert "10 in 5.0 s, 0.50 s each" in text
        assert "20.0  80.0 %" in text
        assert "75.0 %" in text
        assert "2.0 kB up, 1 B down" in text

    def test_run_without_a_round(self):
        summary = result("m", 3, {9: [0.5]}).summary | {"rounds": 0, "personalized_accuracy": None}
        console = terminal()
        console.print(tables.run_table(summary))
        assert "0 in 5.0 s" in said(console)

    def test_markup_in_descriptions_is_text(self):
        console = terminal()
        console.print(tables.words_table("word", {"a[:d]": "means [bold]"}))
        assert "a[:d]" in said(console)
        assert "[bold]" in said(console)


class TestProgress:
    def test_a_line_every_tenth(self):
        console = terminal()
        shown = observer(console, "m")
        assert isinstance(shown, Lines)
        shown.start("m", 30)
        for round in range(30):
            shown.round(line(round, 0.5 if round == 4 else None))
        shown.finish()
        lines = said(console).splitlines()
        assert lines[:3] == ["m: 30 rounds", "m: round 3/30", "m: round 6/30, accuracy 50.0 %"]
        assert len(lines) == 11
        assert lines[-1] == "m: round 30/30, accuracy 50.0 %"

    def test_few_rounds_give_a_line_each(self):
        console = terminal()
        shown = observer(console, "m, seed 1", 2, 6)
        shown.start("m", 3)
        for round in range(3):
            shown.round(line(round))
        assert said(console).splitlines()[1:] == [f"2/6 m, seed 1: round {n}/3" for n in (1, 2, 3)]

    def test_bar(self):
        console = terminal(live=True)
        shown = observer(console, "m", 2, 6)
        assert isinstance(shown, Bar)
        shown.start("m", 2)
        shown.round(line(0, 0.5))
        shown.round(line(1))
        shown.finish()
        last = said(console).splitlines()[-2]  # the last one shows the cursor again
        assert "2/6 m" in last
        assert "2/2" in last
        assert "50.0 %" in last

    @pytest.mark.parametrize("live", [False, True])
    def test_events_are_told_but_not_without_end(self, live):
        console = terminal(live=live)
        shown = observer(console, "m")
        shown.start("m", 100)
        for round in range(50):
            shown.round(line(round, events=[Event("left", 3, "[left]")]))
        shown.finish()
        assert said(console).count("client 3 [left]") == MAX_EVENTS
        assert "round 1: client 3 [left]" in said(console)
        assert said(console).count("more events") == 1


class TestPlots:
    def test_files(self, two, tmp_path):
        files = plots.save_plots(two, tmp_path)
        assert [file.name for file in files] == ["convergence.png", "convergence.pdf", "pma.png", "pma.pdf"]
        assert files[0].read_bytes().startswith(b"\x89PNG")
        assert files[1].read_bytes().startswith(b"%PDF")

    def test_equal_runs_give_equal_bytes(self, two, tmp_path):
        (tmp_path / "again").mkdir()
        for first, second in zip(
            plots.save_plots(two, tmp_path), plots.save_plots(two, tmp_path / "again"), strict=True
        ):
            assert first.read_bytes() == second.read_bytes()

    def test_nothing_to_plot(self, tmp_path):
        assert plots.save_plots(comparison(m=Entry(Stub("m"))), tmp_path) == []

    def test_curve_takes_rounds_that_all_seeds_have(self):
        entry = Entry(
            Stub("m"), {0: result("m", 0, {1: [0.2, 0.4], 9: [0.5, 0.7]}), 1: result("m", 1, {9: [0.8]})}
        )
        rounds, means = plots.curve(entry)
        assert rounds == [10]  # counted from 1; round 1 is missing in the second seed
        np.testing.assert_allclose(means, [[0.6], [0.8]])

    def test_pma_curve(self, two):
        """+10, +20, 0, −10 in both seeds: a quarter at −10, half at 0, all at +20."""
        from matplotlib.figure import Figure

        axes = Figure().subplots()
        looks = {"other": plots.Look("#000000", "-", "o")}
        plots.draw_pma(axes, {"other": two.entries["other"]}, looks)
        step = axes.get_lines()[0]
        heights = dict(zip(np.round(step.get_xdata(), 6), step.get_ydata(), strict=True))
        assert (heights[-10], heights[0], heights[10], heights[20]) == (25, 50, 75, 100)
