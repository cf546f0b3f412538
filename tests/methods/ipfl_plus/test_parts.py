"""The parts of the method: their settings, the paper's rule of each, and what is refused."""

from __future__ import annotations

import pytest
from tests.methods.ipfl_plus.scripted import HONEST, PARTS, play, setup

from ipfl.config.whole_config import Config
from ipfl.errors import InputError
from ipfl.methods import fields_of, hyperparameter, method, method_settings, parts_of
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus
from ipfl.methods.ipfl_plus.payment import Payment
from ipfl.study.method_labels import label_of


class TestParts:
    def test_there_are_at_most_24_settings_those_of_the_parts_counted(self):
        assert len(fields_of(IPFLPlus)) <= 24
        assert tuple(parts_of(IPFLPlus)) == PARTS

    def test_no_part_inherits_from_another(self):
        for part in (IPFLPlus, *parts_of(IPFLPlus).values()):
            own = [one for one in part.__mro__ if one.__module__.startswith("ipfl.methods")]
            assert own == [part]

    @pytest.mark.parametrize("part", PARTS)
    def test_each_can_be_switched_to_the_paper_by_one_word(self, part):
        switched = method("ipfl-plus", **{f"{part}.rule": "paper"})
        assert hyperparameter(switched, f"{part}.rule") == "paper"
        assert label_of(switched) == f"ipfl-plus:{part}.rule=paper"
        others = [other for other in PARTS if other != part]
        assert all(getattr(switched, other) == getattr(IPFLPlus(), other) for other in others)
        state, _, _ = play(switched, 3, HONEST, size=64)
        assert state.accounts.balances.sum() == state.accounts.issued


class TestSettings:
    def test_in_a_config_a_label_and_python(self):
        one = Config.load(None, ["method.payment.subsidy=10"]).build_method()
        other = Config().build_methods(["ipfl-plus:payment.subsidy=10"])["ipfl-plus:payment.subsidy=10"]
        assert (
            one
            == other
            == method("ipfl-plus", payment={"subsidy": 10})
            == IPFLPlus(payment=Payment(subsidy=10))
        )
        assert label_of(one) == "ipfl-plus:payment.subsidy=10.0"

    def test_a_label_changes_one_setting_of_a_part_and_leaves_those_of_the_config(self):
        config = Config.load(None, ["method.payment.subsidy=10", "method.payment.price=7"])
        found = config.build_methods(["ipfl-plus:payment.price=9", "fedavg"])
        assert found["ipfl-plus:payment.price=9"].payment == Payment(subsidy=10, price=9)

    def test_what_is_recorded_builds_the_same_method(self):
        given = method("ipfl-plus", guards={"leave_out": ["noise"]}, seats={"explore": 0.1}, clusters=4)
        recorded = method_settings(given)
        assert method(recorded.pop("name"), **recorded) == given

    @pytest.mark.parametrize(("rounds", "prices"), [(5, 100), (100, 100), (500, 500)])
    def test_the_opening_is_a_price_for_every_round_and_100_at_least(self, rounds, prices):
        dear = method("ipfl-plus", payment={"price": 7})
        state = dear.init(setup(config={"rounds": rounds}))
        assert set(state.accounts.balances.tolist()) == {7 * prices}
        assert dear.rules(state)["opening"] == 7 * prices
        state = method("ipfl-plus", payment={"price": 7, "opening": 30}).init(setup())
        assert set(state.accounts.balances.tolist()) == {30}


class TestRefused:
    def test_an_opening_below_the_price(self):
        with pytest.raises(InputError, match="opening balance 50 is below the price 100"):
            method("ipfl-plus", payment={"opening": 50}).init(setup())

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"payment": {"eta": 1.5}}, r"method\.payment\.eta"),
            ({"payment": {"price": 0}}, r"method\.payment\.price"),
            ({"mix": {"rule": "blend"}}, r"method\.mix\.rule should be 'evidence' or 'paper', not 'blend'"),
            ({"clusters": 0}, r"method\.clusters"),
            ({"guards": {"leave_out": ["dogs"]}}, r"method\.guards\.leave_out"),
            ({"payment": {"subsidie": 1}}, r"did you mean 'payment\.subsidy'"),
            ({"payment": 3}, r"unknown hyper-parameter of ipfl-plus 'payment'"),
            ({"preset": "paper"}, r"unknown hyper-parameter of ipfl-plus 'preset'"),
        ],
    )
    def test_with_the_key(self, settings, says):
        with pytest.raises(InputError, match=says):
            method("ipfl-plus", **settings)

    @pytest.mark.parametrize("name", ["payment.eta", "payment.subsidy", "seats.ration", "seats.explore"])
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_numbers_that_are_none(self, name, value):
        with pytest.raises(InputError, match=rf"method\.{name}"):
            method("ipfl-plus", **{name: value})

    @pytest.mark.parametrize(
        ("key", "meant"),
        [
            ("method.incentve", "method.incentive"),
            ("method.payment.subsidi", "method.payment.subsidy"),
            ("subsidy", "method.payment.subsidy"),
        ],
    )
    def test_from_a_config(self, key, meant):
        with pytest.raises(InputError, match=rf"unknown key '{key}'; did you mean '{meant}'"):
            Config.load(None, [f"{key}=1"]).build_method()
