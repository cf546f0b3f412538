"""Figures of runs: the numbers that they show, their files, and many methods at once."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.play.small_comparison import made_up_result, two_methods

from ipfl.core import NO_CLUSTER
from ipfl.errors import InputError
from ipfl.figure_style import add_values, figure_settings, new_figure, spread_apart, svg_text
from ipfl.market.bank import ISSUER
from ipfl.market.market_rows import Bid, Contribution, Transfer
from ipfl.methods import REFERENCE
from ipfl.report import accuracy_figures, market_figures
from ipfl.report.figure_list import (
    available_figures,
    check_figures,
    make_figure,
    save_figures,
)
from ipfl.report.run_set import RunSet


@pytest.fixture(scope="module")
def two():
    return RunSet({name: entry.results for name, entry in two_methods().entries.items()}, REFERENCE)


def market_run():
    """Two clients and two clusters, three rounds.

    Client 0 pays 10 in rounds 0 and 1 and earns 14 in round 1; client 1 pays 10 and earns 16 in round 1.
    Both opened with 100; they end with 94 and 106.
    """
    run = made_up_result("market", 0, {0: [0.2, 0.4], 2: [0.5, 0.7]})
    pay = [Transfer("fee", client, -3, 10, 0, client) for client in (0, 1)]
    rewards = [Transfer("reward", -3, 0, 14, 0, 0), Transfer("reward", -3, 1, 16, 0, 1)]
    run.history.extend(
        [
            {"round": 0, "clients": 2, "transfers": (pay[0],), "bids": (Bid(0, 1, 0), Bid(1, 0, 0))},
            {
                "round": 1, "clients": 2, "transfers": (*pay, *rewards), "bids": (Bid(0, 0, 1), Bid(0, 1, 0)),
                "contributions": (Contribution(0, 0, 0.5, 1), Contribution(1, 0, None, 1)),
            },
            {"round": 2, "clients": 1, "transfers": (), "contributions": (Contribution(0, 0, 0.25, 2),)},
        ]
    )  # fmt: skip
    run.summary.update({
        "config": {}, "clusters": 2, "clients": 2,
        "cluster_accuracy": [[0.1, 0.9], [0.8, 0.2]],
    })  # fmt: skip
    return replace(run, opening=tuple(Transfer("open", ISSUER, i, 100, NO_CLUSTER, i) for i in (0, 1)))


MARKET = RunSet({"market": {0: market_run()}})


class TestNumbers:
    def test_curve_takes_rounds_that_all_seeds_have(self):
        seeds = {
            0: made_up_result("m", 0, {1: [0.2, 0.4], 9: [0.5, 0.7]}),
            1: made_up_result("m", 1, {9: [0.8]}),
        }
        curve = accuracy_figures.accuracy_curve(seeds)
        assert curve.rounds == [9]  # round 1 is missing in the second seed
        np.testing.assert_allclose(curve.middle, [70])  # of 60 and 80
        np.testing.assert_allclose(curve.spread, [np.sqrt(200)])  # (10² + 10²) / (2 − 1)

    def test_the_spread_of_a_single_run_is_that_of_its_clients(self):
        curve = accuracy_figures.client_curve(made_up_result("m", 0, {1: [0.2, 0.4], 9: [0.5, 0.7]}))
        np.testing.assert_allclose([curve.middle, curve.spread], [[30, 60], [10, 10]])

    def test_pma_curve(self, two):
        """+10, +20, 0, −10 in both seeds: a quarter at −10, half at 0, all at +20."""
        (axes,) = make_figure("pma", two).axes
        step = axes.get_lines()[0]
        heights = dict(zip(np.round(step.get_xdata(), 6), step.get_ydata(), strict=True))
        assert (heights[-10], heights[0], heights[10], heights[20]) == (25, 50, 75, 100)

    def test_bars(self, two):
        """The other: mean of 60, 70, 50, 40 is 55; two of four gain. The reference has no such bar."""
        accuracy, gain = make_figure("ablation", two).axes
        assert sorted(bar.get_width() for bar in accuracy.patches) == pytest.approx([50, 55])
        assert [bar.get_width() for bar in gain.patches] == pytest.approx([50])
        assert [label.get_text() for label in accuracy.get_yticklabels()] == [REFERENCE, "other"]

    def test_balances(self):
        rounds, balances = market_figures.balances_over_time(market_run())
        assert rounds == [-1, 0, 1, 2]  # the opening first
        assert balances.tolist() == [[100, 100], [90, 100], [94, 106], [94, 106]]

    def test_preferences(self):
        """The rank decides, not the order; client 1 made no bid in round 1."""
        rounds, clients, wanted = market_figures.preferred_clusters(market_run())
        assert (rounds, clients) == ([0, 1], [0, 1])
        np.testing.assert_array_equal(wanted, [[1, 1], [0, np.nan]])

    def test_contributions(self):
        assert market_figures.contributions_and_rewards(market_run()) == {0: (0.75, 14), 1: (0.0, 16)}

    def test_clusters_are_matched_to_distributions(self):
        """Cluster 1 is the one for distribution 0: it comes first."""
        table = accuracy_figures.cluster_accuracy({0: market_run()})
        np.testing.assert_allclose(table, [[90, 10], [20, 80]])

    def test_only_numbers_have_a_minus_sign(self):
        title = accuracy_figures._distribution_title
        assert title("IP-FL", [-3.0, -1.0], opt_outs=True) == "IP-FL −2.0"
        assert title("IP-FL", [3.0, 1.0], opt_outs=False) == "IP-FL 2.0"


class TestFiles:
    @pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
    def test_equal_runs_give_equal_bytes(self, two, tmp_path, kind):
        first, second = (
            save_figures(["convergence"], two, tmp_path / name, [kind])[0].read_bytes() for name in "ab"
        )
        assert first == second

    def test_every_figure_of_a_market_is_drawn(self, tmp_path):
        names = available_figures(MARKET)
        assert names == ["convergence", "accuracy", "clusters", "preferences", "tokens", "contributions"]
        assert all(file.stat().st_size > 2000 for file in save_figures(names, MARKET, tmp_path, ["png"]))

    def test_bad_names(self, two):
        with pytest.raises(InputError, match="did you mean 'tokens'"):
            check_figures(["token"], two)
        with pytest.raises(InputError, match="no data for the figure 'tokens'"):
            check_figures(["tokens"], two)


@pytest.fixture(scope="module")
def many():
    """Fourteen methods with the accuracies 1 % to 14 %; names that would be formulas or marks."""
    names = [f"m{i}" for i in range(12)] + ["$x^2$", "<b>&"]
    return RunSet(
        {n: {0: made_up_result(n, 0, {0: [0.1], 9: [0.01 * (i + 1)]})} for i, n in enumerate(names)}
    )


class TestManyMethods:
    @pytest.mark.parametrize("name", ["convergence", "accuracy"])
    def test_each_has_a_panel_best_first(self, many, name):
        panels = [axes for axes in make_figure(name, many).axes if axes.axison]
        titles = [axes.get_title(loc="left").rsplit(" ", 1)[0] for axes in panels]
        assert titles == list(reversed(many.runs))
        assert all(len(axes.get_lines()) == 14 for axes in panels)

    def test_names_are_escaped(self, many):
        drawn = svg_text(make_figure("convergence", many), "it")
        assert "&lt;b&gt;&amp; 14.0" in drawn
        assert "$x^2$ 13.0" in drawn
        assert "<b>" not in drawn


class TestSvg:
    def test_values_under_the_mouse_and_ids_of_their_own(self):
        with figure_settings():
            figure = new_figure()
            axes = figure.subplots()
            (line,) = axes.plot([1, 2, 3], [1, 2, 3], "-o")
            add_values(line, ["one", "two", "<three>"])
            (bar,) = axes.bar([1], [1])
            add_values(bar, ["a bar"])
        drawn = svg_text(figure, "my figure")
        assert re.findall(r"<title>(.*?)</title>", drawn) == ["a bar", "one", "two", "&lt;three&gt;"]
        ids = re.findall(r'\bid="(.*?)"', drawn)
        assert len(ids) == len(set(ids))
        assert all(one.startswith("my-figure-") for one in ids)
        used = set(re.findall(r'(?:href="#|url\(#)(.*?)["\)]', drawn))
        assert used
        assert used <= set(ids)
        assert drawn == svg_text(figure, "my figure")

    @given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(0.1, 5))
    def test_labels_are_apart_and_in_order(self, heights, apart):
        places = spread_apart(heights, apart, 0.0, 100.0)
        order = sorted(range(len(heights)), key=lambda i: heights[i])
        ordered = [places[i] for i in order]
        assert all(b - a >= apart * (1 - 1e-9) for a, b in pairwise(ordered))
        assert max(places) <= max(100.0, apart * (len(heights) - 1)) + 1e-9
