"""The examples: short enough to read, run as they stand, and each writes its picture."""

import re
import runpy
import sys
from pathlib import Path

import pytest

import ipfl

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(example, folder, monkeypatch, *more):
    monkeypatch.setattr(sys, "argv", [str(example), "--out", str(folder), *more])
    # In this process, without its worker processes: nothing is imported twice.
    for name, quiet in (("run", {"progress": False}), ("compare", {"progress": False, "workers": 0})):
        whole = getattr(ipfl, name)
        monkeypatch.setattr(ipfl, name, lambda *a, _whole=whole, _quiet=quiet, **k: _whole(*a, **k, **_quiet))
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short_and_shown_in_the_document(example):
    assert len(example.read_text().splitlines()) <= 60
    document = (ROOT / "docs/examples.md").read_text()
    assert f"$ python examples/{example.name} --out ." in document
    picture = f"img/examples-{example.stem}.png"
    assert f"]({picture})" in document
    assert (ROOT / "docs" / picture).exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_writes_its_picture(example, tmp_path, monkeypatch, capsys):
    try:
        run(example, tmp_path, monkeypatch, "--rounds", "3")
    except SystemExit as error:
        if "this example needs the data set" in str(error):
            pytest.skip(str(error))
        raise
    assert (tmp_path / f"{example.stem}.png").stat().st_size > 10_000
    assert re.search(r"\d%|\d %", capsys.readouterr().out)


def test_without_the_data_it_says_what_is_missing(tmp_path, monkeypatch):
    def nothing(**settings):
        raise ipfl.InputError("har is not here")

    monkeypatch.setattr(ipfl.Task, "load", nothing)
    with pytest.raises(SystemExit, match="this example needs the data set har: har is not here"):
        run(ROOT / "examples/wearables.py", tmp_path, monkeypatch)
