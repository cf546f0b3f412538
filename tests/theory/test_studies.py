"""The files of `ipfl theory`."""

import json

import pytest
from tests.made_once import made_once
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.errors import InputError
from ipfl.theory.gaussian_means import READINGS
from ipfl.theory.studies import STUDIES, write_studies


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_once(
        tmp_path_factory, "theory", lambda folder: write_studies(list(STUDIES), folder, seed=3, trials=400)
    )


@pytest.fixture(scope="module")
def numbers(folder):
    return json.loads((folder / "theory.json").read_text())


def test_files(folder):
    assert {file.name for file in folder.iterdir()} == {"theory.json", *(f"{name}.png" for name in STUDIES)}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in folder.glob("*.png"))


def test_a_seed_decides_every_byte(folder, tmp_path):
    for file in write_studies(["remark-3"], tmp_path, seed=3, trials=400)[:-1]:
        assert file.read_bytes() == (folder / file.name).read_bytes()
    write_studies(["remark-3"], tmp_path, seed=4, trials=400)
    assert (
        json.loads((tmp_path / "theory.json").read_text())["remark-3"]["clusters"]
        != (json.loads((folder / "theory.json").read_text())["remark-3"]["clusters"])
    )


def test_region(numbers):
    """A simulation that is sure agrees with the formula of its way of drawing."""
    for reading in READINGS:
        rows = numbers["region"][reading]
        sure = [row for row in rows if row["low"] > 0 or row["high"] < 0]
        assert len(sure) > len(rows) / 2
        agreeing = sum((row["formula"] > 0) == (row["mean"] > 0) for row in sure)
        assert agreeing >= 0.97 * len(sure)  # a 95 % band is wrong now and then


def test_clustering(numbers):
    found = numbers["clustering"]
    assert found["largest_rise"] <= 1e-9
    assert sum(found["steps"]) == found["starts"] == 300
    assert found["best_loss"] < found["worst_loss"] < found["one_cluster_loss"]


def test_convergence(numbers):
    found = numbers["convergence"]
    assert found["drift"]["constant"][-1] == pytest.approx(found["constant_step_limit"])
    for key in ("drift", "noise"):
        assert found[key]["diminishing"][-1] < 0.01 * min(
            found[key]["constant"][-1], found[key]["too fast"][-1]
        )
    assert found["clusters"]["distance"][-1] < 0.01


def test_command(tmp_path):
    listed = CliRunner().invoke(app, ["theory", "--list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in STUDIES)
    unknown = CliRunner().invoke(app, ["theory", "regions", "--out", str(tmp_path / "out")])
    assert unknown.exit_code == 2
    assert "did you mean 'region'?" in unknown.output
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_studies(["remark-3"], tmp_path / "file", 0, 10)
