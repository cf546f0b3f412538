"""`experiments/collect.py`: what it makes of runs, by hand, and which runs it refuses to put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import collect
from ipfl.runs.comparison import compare
from ipfl.runs.config import Config

TINY = ["rounds=2", "task.model=softmax", "task.clients=6", "task.samples=20", "evaluate.every=1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """Runs of methods with and without clusters, reports and tokens."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    compare(Config.load(None, TINY), ["ifca", "fedem", "ipfl"], [3, 4], reference="local", out=out, workers=0)
    return out


def change(folder: Path, study: Path, **changes) -> Path:
    """A copy of a study in which the last summary says something else."""
    for path in study.glob("*/seed-*/*.json*"):
        copy = folder / study.name / path.relative_to(study)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    last = sorted((folder / study.name).glob("*/seed-*/summary.json"))[-1]
    last.write_text(json.dumps(json.loads(last.read_text()) | changes))
    return folder / study.name


def test_every_kind_of_method(study):
    found = collect.collect(study)
    assert set(found["methods"]) == {"ifca", "fedem", "ipfl", "local"}
    assert all(set(seeds) == {"3", "4"} for seeds in found["methods"].values())
    assert found["reference"] == "local"
    assert "seed" not in found["config"]
    assert [found["methods"][name]["3"]["broke"] is None for name in ("ifca", "fedem", "ipfl")] == [
        True,
        True,
        False,
    ]
    table = "\n".join(collect.section(found))
    assert "PMA over `local`" in table
    for name in found["methods"]:
        assert f"| `{name}` | 2 |" in table


def test_one_commit_only(study, tmp_path):
    expected = r"error: .*fedem/seed-3 and .*local/seed-4 differ in their commit"
    with pytest.raises(SystemExit, match=expected):
        collect.collect(change(tmp_path, study, commit="another"))


def test_one_config_only(study, tmp_path):
    summary = json.loads((study / "local/seed-4/summary.json").read_text())
    config = summary["config"]
    other = config | {"train": config["train"] | {"lr": 0.5}}
    with pytest.raises(SystemExit, match="differ in their config"):
        collect.collect(change(tmp_path, study, config=other))


def test_what_may_differ(study, tmp_path):
    summary = json.loads((study / "local/seed-4/summary.json").read_text())
    config = summary["config"]
    other = config | {
        "seed": 99,
        "method": {"name": "mine"},
        "task": config["task"] | {"data_dir": "/elsewhere"},
        "clients": config["clients"] | {"leave": True},
    }
    assert set(collect.collect(change(tmp_path, study, config=other))["methods"]) == {
        "ifca", "fedem", "ipfl", "local",
    }  # fmt: skip


def test_one_reference_only(study, tmp_path):
    runs = change(tmp_path, study, reference="fedavg")  # of local's last run, which had none
    with pytest.raises(SystemExit, match="differ in their reference"):
        collect.collect(runs)


def test_no_runs(tmp_path):
    with pytest.raises(SystemExit, match="holds no finished runs"):
        collect.collect(tmp_path)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        # Squared differences from 20: 100 + 0 + 100, over n − 1 = 2: 100, whose root is 10.
        ([0.1, 0.2, 0.3], "20.0 ± 10.0"),
        # (2 and 4): 1 + 1 over 1: √2.
        ([0.02, 0.04], "3.0 ± 1.4"),
        ([0.5], "50.0"),
        ([], "–"),
    ],
)
def test_spread_over_seeds(values, text):
    assert collect.spread(values) == text


def pure_run(evaluated, curve):
    return {"evaluated": evaluated, "purity_curve": curve, "accuracy_curve": [0.25] * len(evaluated)}


def test_rounds_are_counted_from_1():
    # Evaluated in rounds 0, 4, 9, 14 (as the files count them), pure for good from 9 on: the tenth round.
    run = pure_run([0, 4, 9, 14], [0.95, 0.9, 0.96, 1.0])
    late = pure_run([0, 4, 9, 14], [0.5, None, 0.9, 0.95])
    assert collect.first_pure([run]) == "Purity stays at 0.95 or more from round 10 at worst, 10 on average."
    # The other one from its fifteenth: (10 + 15)/2 = 12.5, which is printed as 12.
    assert collect.first_pure([run, late]).startswith(
        "Purity stays at 0.95 or more from round 15 at worst, 12"
    )
    assert collect.curve("m", [run]) == "- `m`: 1: 25.0, 5: 25.0, 10: 25.0, 15: 25.0"


def test_never_pure():
    assert collect.first_pure([pure_run([0, 4], [1.0, 0.9])]) is None


def test_what_is_committed_is_what_the_tables_say(tmp_path, monkeypatch):
    """`results.md` is made of `results/`, and of nothing else."""
    made = tmp_path / "results.md"
    sources = {path.name: path.read_text() for path in collect.HERE.glob("*.toml")}
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    before = (collect.HERE / "results.md").read_text()
    monkeypatch.setattr(collect, "HERE", tmp_path)
    monkeypatch.setattr("sys.argv", ["collect.py"])
    collect.main()
    assert made.read_text() == before
