"""Tables: numbers as people read them, within 80 columns."""

import dataclasses
from copy import deepcopy

import pytest
from tests.play.small_comparison import NamedMethod, comparison_of, made_up_result, two_methods
from tests.report.screen import printed, terminal

from ipfl.methods import REFERENCE
from ipfl.report import result_tables as tables
from ipfl.study.comparison import MethodRuns


@pytest.fixture
def two():
    return two_methods()


def shown(table):
    """What is printed of a table at 80 columns."""
    console = terminal()
    console.print(table)
    return printed(console)


def rows(table):
    """Its lines, with one space between words."""
    return [" ".join(line.split()) for line in shown(table).splitlines()]


class TestNumbers:
    @pytest.mark.parametrize(
        "nbytes, text",
        [
            (0, "0 B"), (4.5, "4 B"), (999, "999 B"), (1000, "1.0 kB"), (99_400, "99.4 kB"),
            (179_860, "180 kB"), (999_600, "1.0 MB"), (2.5e9, "2.5 GB"), (None, "–"),
        ],
    )  # fmt: skip
    def test_size(self, nbytes, text):
        assert tables.format_size(nbytes) == text

    def test_percent(self):
        assert tables.format_percent(0.12345) == "12.3"
        assert tables.format_percent(None) == "–"
        assert tables.format_mean_std({"mean": 0.5, "std": 0.025}) == "50.0 ± 2.5"
        assert tables.format_mean_std({"mean": 0.05, "std": 0}, signed=True) == "+5.0 ± 0.0"
        assert tables.format_mean_std(None) == "–"


class TestTables:
    def test_comparison(self, two):
        found = rows(tables.comparison_table(two))
        # Accuracy of the other: mean of 60, 70, 50, 40 is 55, deviation √(25+225+25+225)/2 = 11.2.
        assert "other 55.0 ± 11.2 +5.0 ± 11.2 2 – 0.50 2.0 kB 1 B" in found
        assert f"{REFERENCE} 50.0 ± 0.0 reference – – 0.50 2.0 kB 1 B" in found

    def test_pma_says_over_what(self, two):
        """Clients cannot gain over a method that has another one as its reference."""
        other = dataclasses.replace(two, reference="other")
        found = rows(tables.comparison_table(other))
        head = found.index("PMA over opt-")
        assert found[head + 1] == "method accuracy other outs purity s up down"
        assert "other 55.0 ± 11.2 reference 2 – 0.50 2.0 kB 1 B" in found
        assert any("points gained over other" in note for note in tables.comparison_notes(other))

    def test_what_the_last_step_took_is_said(self, two):
        entry = deepcopy(two.entries["other"])
        for result in entry.results.values():
            result.summary.update(last_step_passes=15.0, last_step_seconds=0.0123)
        notes = tables.comparison_notes(comparison_of(**two.entries, further=entry))
        assert notes[-1] == "Last step of further: 15 passes over a client's points, 0.012 s."
        assert sum("Last step" in note for note in notes) == 1

    @pytest.mark.parametrize("name", ["fedprox", "ipfl-plus", "ipfl-plus+adapt"])
    def test_names_are_whole_at_80_columns(self, two, name):
        """Even beside the widest figures."""
        entries = deepcopy({**two.entries, name: two.entries["other"]})
        for run in (run for entry in entries.values() for run in entry.results.values()):
            run.summary.update(purity=1.0, seconds=1234.0, bytes_up=4e8, bytes_down=4e8)
        lines = shown(tables.comparison_table(comparison_of(**entries))).splitlines()
        assert any(line.split()[:1] == [name] for line in lines)
        assert max(len(line.rstrip()) for line in lines) <= 80

    def test_variants_at_80_columns(self, two):
        """Numbers are never broken; each setting of a variant has a line of its own."""
        label = "other:incentive=false:initial_clustering=true"
        entries = {**two.entries, label: two.entries["other"]}
        table = tables.comparison_table(comparison_of(**entries))
        assert max(len(line.rstrip()) for line in shown(table).splitlines()) <= 80
        found = rows(table)
        place = found.index("incentive=false 1 B")
        assert found[place - 1] == "other 55.0 ± 11.2 +5.0 ± 11.2 2 – 0.50 2.0 kB"
        assert "".join(found[place + 1 :]).startswith("initial_clustering=true")

    def test_failures_have_no_figures(self, two):
        two.entries["other"].failures[1] = "ValueError: no\nmore"
        two.entries["late"] = MethodRuns(NamedMethod("late"))
        two.entries["cut"] = MethodRuns(NamedMethod("cut"), failures={0: "interrupted after 3 rounds"})
        found = rows(tables.comparison_table(two))
        assert {"other failed", "late not run", "cut interrupted"} <= set(found)

    def test_run(self):
        summary = made_up_result("m", 3, {9: [0.5, 0.7]}).summary
        summary |= {"clusters": 2, "cluster_accuracy": [[0.9, 0.1], [0.2, 0.8]], "purity": 0.75}
        text = shown(tables.run_table(summary))
        assert "60.0 ± 10.0 % over clients" in text
        assert "10 in 5.0 s, 0.50 s each" in text
        assert "20.0  80.0 %" in text
        assert "75.0 %" in text
        assert "2.0 kB up, 1 B down" in text

    def test_run_without_a_round(self):
        summary = made_up_result("m", 3, {9: [0.5]}).summary | {"rounds": 0, "personalized_accuracy": None}
        assert "0 in 5.0 s" in shown(tables.run_table(summary))

    def test_markup_in_descriptions_is_text(self):
        text = shown(tables.meanings_table("word", {"a[:d]": "means [bold]"}))
        assert "a[:d]" in text
        assert "[bold]" in text
