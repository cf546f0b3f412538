"""Which settings the page of a run tells."""

import pytest

import ipfl
from ipfl.config.run_config import Config
from ipfl.console.settings import non_default_settings
from ipfl.methods import method_settings


def test_settings_of_the_method_are_among_them():
    config = Config(rounds=7).model_dump(mode="json")
    own = method_settings(ipfl.method("ipfl-plus", clusters="auto", max_clusters=4))
    assert non_default_settings(config | {"method": own}) == {
        "rounds": "7", "method.name": "ipfl-plus", "method.clusters": "auto", "method.max_clusters": "4",
    }  # fmt: skip


def test_nothing_is_imported_for_a_method_of_others():
    """A store is only data, whoever wrote it."""
    config = {"method": {"name": "no.such.module:Class", "price": 5}}
    assert non_default_settings(config) == {"method.name": "no.such.module:Class", "method.price": "5"}


@pytest.mark.parametrize("config", [None, [], "text", {"method": "text"}, {"method": []}])
def test_any_config_will_do(config):
    assert set(non_default_settings(config)) <= {"method"}
