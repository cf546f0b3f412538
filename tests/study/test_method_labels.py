"""Rows of a comparison: names of folders that every system allows, and whose the last step is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipfl
from ipfl.config.train_section import AdaptConfig
from ipfl.config.whole_config import Config
from ipfl.errors import InputError
from ipfl.methods import METHODS
from ipfl.study.method_labels import folder_names, label_methods, suitable_methods
from ipfl.training.architectures import Softmax
from ipfl.training.network import build_network


def test_by_hand():
    labels = [
        "ipfl-plus",
        "ipfl-plus:incentive=false",
        "mine:Class",
        "mine+Class",
        "IPFL-PLUS",
        "a.",
        "..",
        "a/b",
    ]
    assert list(folder_names(labels).values()) == [
        "ipfl-plus", "ipfl-plus+incentive=false", "mine+Class", "mine+Class-2", "IPFL-PLUS-2",
        "a", "method", "a+b",
    ]  # fmt: skip


@given(st.lists(st.text(alphabet='aA1:+-. /\\<>|?*"=\n', min_size=1), unique=True))
def test_one_for_each(labels):
    names = folder_names(labels)
    assert list(names) == labels
    assert len({name.casefold() for name in names.values()}) == len(labels)
    for name in names.values():
        assert re.fullmatch(r'[^<>:"/\\|?*\x00-\x1f]+', name)
        assert name[-1] not in ". "


def test_methods_that_suit_a_task():
    network = build_network(Softmax, (3,), 2, 0)  # a head, and nothing else
    found = suitable_methods(network, Config())
    assert {*METHODS} - {*found} == {"fedbn", "fedper"}
    adapted = suitable_methods(network, Config(adapt={"epochs": 1}))
    assert {*found} - {*adapted} == {"fedem", "fedproto"}


class TestLastStep:
    """`+adapt` behind a name: whose row the section `[adapt]` is."""

    OFF, ON = AdaptConfig(), AdaptConfig(epochs="auto", label_prior=True)
    GIVEN = AdaptConfig(epochs=3, lr=0.5)
    OWN = ipfl.method("ditto")

    def adapts(self, methods, section=None, reference="fedavg"):
        rows, _ = label_methods(Config(adapt=section or {}), methods, reference)
        return {label: row.adapt for label, row in rows.items()}

    @pytest.mark.parametrize(
        ("methods", "section", "expected"),
        [
            # A row of its own.
            (
                ["fedavg", "fedavg+adapt", "ditto+adapt:lam=2"],
                {},
                {"fedavg": OFF, "fedavg+adapt": ON, "ditto+adapt:lam=2": ON},
            ),
            # Labels of the user's own.
            (
                {"plain": "fedavg", "further": "fedavg+adapt", "own+adapt": OWN},
                {},
                {"plain": OFF, "further": ON, "own+adapt": ON, "fedavg": OFF},
            ),
            # The section is theirs alone, or everybody's.
            (["fedavg", "ifca+adapt"], {"epochs": 3, "lr": 0.5}, {"fedavg": OFF, "ifca+adapt": GIVEN}),
            (["ifca"], {"epochs": 3, "lr": 0.5}, {"ifca": GIVEN, "fedavg": GIVEN}),
        ],
    )
    def test_whose_row_it_is(self, methods, section, expected):
        assert self.adapts(methods, section) == expected

    def test_a_section_that_is_off_says_nothing_but_how(self):
        assert self.adapts(["fedavg+adapt"], {"lr": 0.5}, "fedavg+adapt") == {
            "fedavg+adapt": AdaptConfig(epochs="auto", label_prior=True, lr=0.5)
        }

    @pytest.mark.parametrize("name", ["fedem", "fedproto"])
    def test_refused_without_one_network(self, name):
        with pytest.raises(InputError, match=rf"^\[adapt\] needs clients with one network each.* {name} "):
            self.adapts(["fedavg", f"{name}+adapt"])

    def test_of_a_single_run(self):
        config = Config(method={"name": "ifca+adapt"}, adapt={"lr": 0.2})
        assert config.method.name == "ifca"
        assert config.adapt == AdaptConfig(epochs="auto", label_prior=True, lr=0.2)
        assert Config.of(config.model_dump(mode="json")) == config
