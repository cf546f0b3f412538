"""Which replay the ledger of a run is verified with."""

import sys

import pytest
from tests.ledger.example_runs import LINE, worked_run

from ipfl.keep.run_audit import verify_run
from ipfl.ledger.verify import Finding, verify
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "run")


def test_the_method_of_the_header_is_replayed(place):
    moved = LINE["transfers"][-1]._replace(target=2)  # client 9's reward goes to client 2
    store = worked_run(place, line=LINE | {"transfers": (*LINE["transfers"][:-1], moved)})
    found = verify_run(store)
    assert found is not None
    assert (found.round, found.sequence) == (0, 12)
    assert found == verify(store, IPFLPlus.replay)


def test_without_rules_no_method_is_needed(place):
    assert verify_run(worked_run(place, method="unheard of", rules={})) is None


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("unheard of", "the run's method is not known here"),
        (None, "the run's method is not known here"),
        ("fedavg", "the run has a market whose rules are not known here"),
    ],
)
def test_a_method_without_a_replay(place, method, words):
    found = verify_run(worked_run(place, method=method))
    assert found is not None
    assert found.round is None
    assert words in found.what
    assert len(found.what.splitlines()) == 1


def test_code_that_a_store_names_is_not_imported(place, tmp_path, monkeypatch):
    """A store may come from anybody."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    store = worked_run(place, method="trap:Method")
    found = verify_run(store)
    assert isinstance(found, Finding)
    assert "verify(store, YourMethod.replay)" in found.what
    assert "trap" not in sys.modules
    assert verify(store, IPFLPlus.replay) is None  # who trusts the method names its replay
