"""`ipfl data describe`, and what is looked up beside a config file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cli import ipfl, refused

from ipfl.training.task import Task


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and in it `project` with a config, a module and a file of three clients."""
    project = tmp_path / "project"
    project.mkdir()
    x, y = np.arange(60.0).reshape(60, 1), np.arange(60) % 2
    np.savez(project / "mine.npz", x=x, y=y, client=np.repeat(["Bern", "Basel", "Chur"], 20))
    (project / "beside_config.py").write_text(
        "import numpy as np\nfrom ipfl.data.own.own_clients import from_clients\n"
        "def data():\n    x = np.zeros((20, 1))\n    return from_clients({'a': (x, np.arange(20) % 2)})\n"
    )
    (project / "file.toml").write_text(
        '[task]\npath = "mine.npz"\npartition = "natural"\nmodel = "softmax"\n'
    )
    (project / "module.toml").write_text('[task]\ndataset = "beside_config:data"\nmodel = "softmax"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "beside_config", raising=False)
    return tmp_path


def test_table_and_picture(place: Path) -> None:
    done = ipfl("data", "describe", "project/file.toml", "--plot", "who.png")
    assert done.exit_code == 0, done.output
    # 20 points: 4 test, 16 training, of which 0.2 · 16 = 3.2, rounded 3, are probe; half of each label
    assert re.search(r"^ Bern +13 +3 +4 +2 +\d \(\d+\), \d \(\d+\)", done.stdout, re.M)
    assert re.search(r"^ all +39 +9 +12 +2 ", done.stdout, re.M)
    assert "mine.npz: 3 clients, all there are" in done.stdout
    assert (place / "who.png").read_bytes().startswith(b"\x89PNG")


def test_labels_in_words(place: Path) -> None:
    y = np.resize(["ill", "well"], 60)
    np.savez("words.npz", x=np.zeros((60, 2), np.float32), y=y, client=np.repeat(["Bern", "Chur"], 30))
    task = Task.load(path="words.npz", partition="natural", model="softmax")
    assert (task.data.name, list(task.class_names)) == ("words.npz", ["ill", "well"])
    points = task.data.parts(0)
    every = [*points.train.y, *points.probe.y, *points.test.y]
    assert (every.count(0), every.count(1)) == (15, 15)


@pytest.mark.parametrize(
    "kind, shown", [("regression", r"0\.5 ± 0\.5, 0 … 1$"), ("multilabel", r"2 +\S+ \(")]
)
def test_other_targets(place: Path, kind: str, shown: str) -> None:
    """Numbers have a mean, several labels are counted each for itself; both have a picture."""
    y = np.resize([[0, 1], [1, 1]], (60, 2))
    np.savez("other.npz", x=np.zeros((60, 2), np.float32), y=y, client=np.repeat(["Bern", "Chur"], 30))
    sets = ["task.path=other.npz", "task.partition=natural", f"task.predict={kind}"]
    done = ipfl("data", "describe", "--plot", "who.png", *(word for one in sets for word in ("--set", one)))
    assert done.exit_code == 0, done.output
    assert re.search(rf"^ all +38 +10 +12 +{shown}", re.sub(" +$", "", done.stdout, flags=re.M), re.M)
    assert (place / "who.png").read_bytes().startswith(b"\x89PNG")


def test_many_clients_and_unseen(place: Path) -> None:
    sets = ["task.clients=50", "task.samples=6", "task.unseen=1"]
    done = ipfl("data", "describe", *(word for one in sets for word in ("--set", one)))
    assert done.exit_code == 0, done.output
    assert "… 10 more" in done.stdout
    assert not list(place.glob("*.png"))


def test_module_and_file_beside_the_config(place: Path) -> None:
    done = ipfl("data", "describe", "project/module.toml")
    assert done.exit_code == 0, done.output
    assert re.search(r"^ a +12 +3 +5 +2 ", done.stdout, re.M)  # 20: 5 test, 15 training, 3 of them probe


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "task.path=project/mine.npz", "--set", "task.dataset=digits"], "path is read with"),
        (["--set", "task.path=nothing.csv"], "there is no file nothing.csv"),
        (["--set", "task.path=nothing"], "expected a file .npz"),
        (["--set", "task.dataset=beside_config:data"], "no such package, and no beside_config.py in"),
        (["--plot", "absent/who.png"], "expected a file .png"),
    ],
)
def test_refused_in_one_line(place: Path, arguments: list[str], says: str) -> None:
    assert says in refused("data", "describe", *arguments)
