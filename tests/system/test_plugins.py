"""A user's own code by name: found in the current folder, refused in one line when it is not there."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ipfl.errors import InputError
from ipfl.system.plugins import load_callable, refuse_code


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_of_the_current_folder(here):
    (here / "mine_for_test.py").write_text("def answer():\n    return 42\nnumber = 5\n")
    before = list(sys.path)
    assert load_callable("mine_for_test:answer", "data set")() == 42
    assert sys.path == before


@pytest.mark.parametrize(
    "reference, complaint",
    [
        ("no_such_module:f", "data set 'no_such_module:f' cannot be imported: No module named"),
        ("mine_for_test:f", "has no attribute 'f'"),
        ("mine_for_test:", "cannot be imported"),
        (":f", "cannot be imported"),
        ("mine_for_test:number", "data set 'mine_for_test:number' is not callable"),
        ("broken_for_test:f", "cannot be imported: division by zero"),
    ],
)
def test_what_is_refused(here, reference, complaint):
    (here / "mine_for_test.py").write_text("number = 5\n")
    (here / "broken_for_test.py").write_text("1 / 0\n")
    before = list(sys.path)
    with pytest.raises(InputError, match=complaint) as error:
        load_callable(reference, "data set")
    assert "\n" not in str(error.value)
    assert sys.path == before


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"loss": "mine:loss"}},
        {"train": {"optimizer": "a.b:factory"}},
        {"evaluate": {"metrics": ["accuracy", "mine:score"]}},
        ["fedavg", {"task": {"model": "hf:folder/model"}}],
        {"task": {"model": "ipfl.cli.exit_codes:exit_with_error"}},
    ],
)
def test_code_in_any_setting_of_a_foreign_folder_is_refused(settings):
    with pytest.raises(InputError, match="names code to import"):
        refuse_code(settings, Path("runs/foreign"))


@pytest.mark.parametrize(
    "reference",
    ["mine_for_test:1", "mine_for_test:a=b", "mine_for_test:a.b", "my-mine:answer", "1mine:answer", "℘:f"],
)
def test_what_a_foreign_folder_may_name_is_never_imported(here, reference):
    """Once, these were not seen as code by the one function, and imported by the other."""
    (here / f"{reference.partition(':')[0]}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    with suppress(InputError):
        refuse_code({"task": {"model": reference}}, Path("runs/foreign"))
    with pytest.raises(InputError, match="cannot be imported"):
        load_callable(reference, "model")
    assert not Path("ran").exists()


def test_settings_with_colons_that_name_no_code():
    names = [
        "10:90",
        "dirichlet:0.3",
        "classes:2",
        "rotated:4",
        "ipfl.methods.one_model.fedavg:FedAvg",
        "ipfl-plus:payment.eta=0.5",
    ]
    refuse_code([names, {"task": {"partition": "30:70"}}, None, 3], Path("runs/foreign"))
