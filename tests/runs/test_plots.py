"""Plots of a comparison: their files, and the numbers that they show."""

import numpy as np
import pytest
from tests.runs.small_comparison import NamedMethod, made_up_result, two_methods

from ipfl.methods import REFERENCE
from ipfl.runs import plots
from ipfl.runs.comparison import MethodRuns


@pytest.fixture
def two():
    return two_methods()


class TestPlots:
    def test_files(self, two, tmp_path):
        files = plots.save_plots(two.entries, REFERENCE, tmp_path)
        assert [file.name for file in files] == ["convergence.png", "convergence.pdf", "pma.png", "pma.pdf"]
        assert files == plots.plot_files(tmp_path) == sorted(tmp_path.iterdir(), key=files.index)
        assert files[0].read_bytes().startswith(b"\x89PNG")
        assert files[1].read_bytes().startswith(b"%PDF")

    def test_equal_runs_give_equal_bytes(self, two, tmp_path):
        (tmp_path / "again").mkdir()
        for first, second in zip(
            plots.save_plots(two.entries, REFERENCE, tmp_path),
            plots.save_plots(two.entries, REFERENCE, tmp_path / "again"),
            strict=True,
        ):
            assert first.read_bytes() == second.read_bytes()

    def test_nothing_to_plot(self, tmp_path):
        assert plots.save_plots({"m": MethodRuns(NamedMethod("m"))}, REFERENCE, tmp_path) == []

    def test_curve_takes_rounds_that_all_seeds_have(self):
        entry = MethodRuns(
            NamedMethod("m"),
            {
                0: made_up_result("m", 0, {1: [0.2, 0.4], 9: [0.5, 0.7]}),
                1: made_up_result("m", 1, {9: [0.8]}),
            },
        )
        rounds, means = plots.curve(entry)
        assert rounds == [10]  # counted from 1; round 1 is missing in the second seed
        np.testing.assert_allclose(means, [[0.6], [0.8]])

    def test_pma_curve(self, two):
        """+10, +20, 0, −10 in both seeds: a quarter at −10, half at 0, all at +20."""
        from matplotlib.figure import Figure

        axes = Figure().subplots()
        styles = {"other": plots.LineStyle("#000000", "-", "o")}
        plots.draw_pma(axes, {"other": two.entries["other"]}, styles)
        step = axes.get_lines()[0]
        heights = dict(zip(np.round(step.get_xdata(), 6), step.get_ydata(), strict=True))
        assert (heights[-10], heights[0], heights[10], heights[20]) == (25, 50, 75, 100)
