"""IP-FL's settings: presets, and what is refused."""

from __future__ import annotations

import pytest
from tests.methods.ipfl_plus.scripted import (
    setup,
)

from ipfl.config.run_config import Config
from ipfl.errors import InputError
from ipfl.methods import method
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.ipfl_settings import PRESETS


class TestSettings:
    def test_the_preset_sets_the_printed_rules(self):
        given = method("ipfl-plus", preset="paper")
        assert {name: getattr(given, name) for name in PRESETS["paper"]} == PRESETS["paper"]
        assert any(getattr(IPFL(), name) != value for name, value in PRESETS["paper"].items())

    def test_what_is_set_beside_it_counts_more(self):
        given = method("ipfl-plus", preset="paper", hits="soft", eta=0.25, clusters=4)
        assert (given.hits, given.eta, given.clusters) == ("soft", 0.25, 4)
        assert (given.payers, given.access, given.decay) == ("seated", "open", 0.5)

    def test_every_field_of_a_preset_is_a_setting(self):
        assert set(PRESETS["paper"]) <= set(IPFL.__dataclass_fields__)

    def test_an_unknown_preset_is_refused(self):
        with pytest.raises(InputError, match=r"method\.preset"):
            method("ipfl-plus", preset="papers")

    @pytest.mark.parametrize(
        "name", ["beta", "beta_psi", "eta", "gamma", "feedback", "decay", "ration", "explore"]
    )
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_that_are_none_are_refused(self, name, value):
        with pytest.raises(InputError, match=rf"method\.{name}"):
            method("ipfl-plus", **{name: value})

    @pytest.mark.parametrize(("rounds", "prices"), [(5, 100), (100, 100), (500, 500)])
    def test_the_opening_is_a_price_for_every_round_and_100_at_least(self, rounds, prices):
        assert IPFL(price=7).opening_balance(rounds) == 7 * prices
        assert IPFL(opening=30).opening_balance(rounds) == 30
        state = IPFL(price=7).init(setup(config={"rounds": rounds}))
        assert set(state.bank.balances.tolist()) == {7 * prices}
        assert IPFL(price=7).rules(state)["opening"] == 7 * prices


class TestBadSettings:
    @pytest.mark.parametrize(
        ("hyper", "says"),
        [
            ({"opening": 50, "price": 100}, "opening balance 50 is below the price 100"),
            ({"contribution": "server"}, "need task.server_samples > 0"),
            ({"initial_clustering": True}, "need task.server_samples > 0"),
        ],
    )
    def test_refused_at_the_start(self, hyper, says):
        with pytest.raises(InputError, match=says):
            IPFL(**hyper).init(setup())

    def test_the_guard_against_noise_and_noise_for_privacy(self):
        """Named, it is refused; as one of all guards, it is left out (`test_robust_round`)."""
        noisy = setup(config={"privacy": {"noise": 1.0}})
        with pytest.raises(InputError, match='guard "noise"'):
            IPFL(robust=("claims", "noise")).init(noisy)
        assert IPFL(robust=("claims",)).init(noisy).is_noisy
        assert IPFL().init(noisy).is_noisy
        assert not IPFL().init(setup()).is_noisy

    @pytest.mark.parametrize(
        ("hyper", "says"),
        [
            ({"eta": 1.5}, "method.eta"),
            ({"gamma": -0.1}, "method.gamma"),
            ({"price": 0}, "method.price"),
            ({"mix": "blend"}, "method.mix"),
            ({"clusters": 0}, "method.clusters"),
        ],
    )
    def test_refused_with_the_key(self, hyper, says):
        with pytest.raises(InputError, match=says):
            method("ipfl-plus", **hyper)

    def test_from_a_config(self):
        with pytest.raises(InputError, match=r"method\.incentve.*did you mean 'method\.incentive'"):
            Config.load(None, ["method.name=ipfl-plus", "method.incentve=false"]).build_method()
