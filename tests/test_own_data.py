"""Every example of docs/own-data.md, run in the order in which it stands there."""

import json
import re
import shlex
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.later import Later
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.engines.local_engine import local_engine
from ipfl.errors import InputError
from ipfl.play.run import run

pd = Later("pandas")

DOCUMENT = (Path(__file__).parent.parent / "docs/own-data.md").read_text()
FILE_BEFORE = re.compile(r"`([\w.]+)`:\s*\Z")


def visits(rows=160):
    """Four hospitals of 40 visits each; who is ill depends on age and blood pressure."""
    rng = np.random.default_rng(0)
    age, pressure = rng.integers(20, 90, rows), rng.normal(130, 15, rows)
    return pd.DataFrame(
        {
            "hospital": np.resize(["Bern", "Basel", "Chur", "Zürich"], rows),
            "age": age,
            "sex": rng.choice(["f", "m"], rows),
            "pressure": pressure,
            "outcome": np.where(age > 65, "ill", np.where(pressure > 130, "watch", "healthy")),
        }
    )


class DirichletStandIn:
    """What a partitioner of flwr-datasets offers: the number of its parts, and each of them.

    The package itself does not install beside the pinned `fsspec`; see the document.
    """

    def __init__(self, num_partitions, partition_by, alpha, min_partition_size):
        self.num_partitions, self.dataset = num_partitions, None

    def load_partition(self, partition_id):
        return self.dataset.shard(self.num_partitions, partition_id)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that the document speaks of."""
    folder = tmp_path_factory.mktemp("own")
    visits().to_csv(folder / "visits.csv", index=False)
    visits().to_parquet(folder / "visits.parquet")
    for client in ("Bern", "Basel"):
        for label in ("cat", "dog"):
            (folder / "photos" / client / label).mkdir(parents=True)
            for number in range(5):
                picture = Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8))
                picture.save(folder / "photos" / client / label / f"{number}.png")
    return folder


@pytest.mark.slow
def test_every_example_runs(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    stand_in = types.ModuleType("flwr_datasets.partitioner")
    stand_in.DirichletPartitioner = DirichletStandIn
    monkeypatch.setitem(sys.modules, "flwr_datasets", types.ModuleType("flwr_datasets"))
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", stand_in)
    # No worker processes: the runs are tiny.
    monkeypatch.setattr(ipfl, "run", lambda *given: run(*given, engine=local_engine(workers=0)))
    names, ran = {}, []
    parts = re.split(r"```(python|toml|console)\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    for before, language, block in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if file := FILE_BEFORE.search(before):
            Path(file[1]).write_text(block)
        elif language == "python":
            exec(block, names)
        for line in block.splitlines() if language == "console" else ():
            _, *words = shlex.split(line.removeprefix("$ "))
            more = ["--workers", "0"] if words[0] == "run" else []
            done = CliRunner().invoke(app, [*words, *more])
            assert done.exit_code == 0, done.output
            ran.append(done.stdout)
    check_what_was_printed(capsys.readouterr().out, ran, names)


def check_what_was_printed(printed, ran, names):
    assert "Task(dataframe: 4 clients, 3 classes, points (4,))" in printed
    assert re.search(r"^Zürich \d+\.\d%$", printed, re.M)
    assert "{0: 'Basel', 1: 'Bern', 2: 'Chur'}" in printed
    assert "Task(huggingface: 3 clients, 2 classes, points (8, 8, 3)) ('cat', 'dog')" in printed
    assert names["points"].shape == (3, 4)
    assert len(names["task"].data.clients) == 3  # the partitioner's, the last of the document
    described, run_shown, parquet, photos, mine = ran
    assert re.search(r"^ Bern +26 +6 +8 ", described, re.M)  # 40 visits: 8 test, 32 training, of them 6 probe
    assert re.search(r"^ Bern +26 +6 +8 ", parquet, re.M)
    assert "visits.csv, natural, 4 clients" in run_shown
    assert re.search(r"^ Basel +6 +2 +2 +2 ", photos, re.M)
    assert "mine, 10:90, 6 clients" in mine
    assert "Picture in visits.png" in described
    assert Path("visits.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def folder(place):
    """The run of `visits.toml`: the first test's, or a new one."""
    if not (place / "runs/visits").exists():
        settings = [f"task.path={place}/visits.csv", "task.client=hospital", "task.target=outcome"]
        sets = [word for setting in [*settings, "rounds=3"] for word in ("--set", setting)]
        out = str(place / "runs/visits")
        assert CliRunner().invoke(app, ["run", *sets, "--workers", "0", "--out", out]).exit_code == 0
    return place / "runs/visits"


class TestNames:
    """Client names in the files of the run of `visits.toml`."""

    def test_summary(self, folder):
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["client_names"] == {"0": "Basel", "1": "Bern", "2": "Chur", "3": "Zürich"}
        assert (summary["dataset"], summary["clients"]) == ("visits.csv", 4)

    def test_models_need_no_data_any_more(self, folder, tmp_path, monkeypatch):
        """In another folder, `visits.csv` is not found."""
        monkeypatch.chdir(tmp_path)
        result = ipfl.load(shutil.copytree(folder, tmp_path / "copy"))
        assert result.predict("Chur", np.zeros((2, 4), np.float32)).shape == (2,)
        if not Path(result.summary["config"]["task"]["path"]).is_absolute():
            with pytest.raises(
                InputError, match=r"data of the run in .* is not found again: there is no file"
            ):
                result.predict("Chur", visits(2))

    def test_rows_and_words_of_a_loaded_run(self, place, folder, monkeypatch):
        """Rows of the table are points; predicted numbers and given labels have the table's words."""
        monkeypatch.chdir(place)
        result, rows = ipfl.load(folder), pd.read_csv(place / "visits.csv").head(20)
        points = ipfl.Task.build(ipfl.TaskConfig(**result.summary["config"]["task"]), seed=0).points(rows)
        np.testing.assert_array_equal(result.predict_proba("Chur", rows), result.predict_proba(2, points))
        assert result.client_names[2] == "Chur"
        assert result.class_names == sorted(set(rows["outcome"]))
        assert set(result.predict("Chur", rows)) <= {0, 1, 2}
        by_words = result.personalize(points, rows["outcome"].to_numpy(str)).state_dict()
        numbers = np.array([result.class_names.index(word) for word in rows["outcome"]])
        by_numbers = result.personalize(points, numbers).state_dict()
        assert all(torch.equal(by_words[name], by_numbers[name]) for name in by_numbers)
        with pytest.raises(InputError, match="'dead' is none of"):
            result.personalize(points[:1], np.array(["dead"]))

    def test_a_newcomer_with_a_table(self, place, folder, tmp_path, monkeypatch):
        """`ipfl personalize` takes a new hospital's rows as they are."""
        monkeypatch.chdir(place)
        rows = visits(24).drop(columns="hospital")
        rows.to_csv(tmp_path / "new.csv", index=False)
        rows.to_parquet(tmp_path / "new.parquet")
        for name in ("new.csv", "new.parquet"):
            given = ["--data", str(tmp_path / name), "--out", str(tmp_path / f"models/{name}")]
            done = CliRunner().invoke(app, ["personalize", str(folder), *given])
            assert done.exit_code == 0, done.output
        models = tmp_path / "models"  # a folder that was not there yet
        assert (models / "new.csv").read_bytes() == (models / "new.parquet").read_bytes()
        rows.drop(columns="outcome").to_csv(tmp_path / "no.csv", index=False)
        done = CliRunner().invoke(
            app, ["personalize", str(folder), "--data", str(tmp_path / "no.csv"), "--out", "m"]
        )
        assert done.exit_code == 2
        assert "no.csv has no column 'outcome', which the run predicts" in done.stderr

    def test_ledger(self, folder):
        def told(*words):
            return CliRunner().invoke(app, ["ledger", words[0], str(folder), *words[1:]])

        shown = told("show", "--client", "Chur").stdout
        assert re.search(r"^ Chur +10 000 ", shown, re.M)
        assert "Basel" not in shown
        assert all(name in told("show").stdout for name in ("Basel", "Bern", "Chur", "Zürich"))
        header, first, *_ = told("export").stdout.splitlines()
        assert header.endswith(",client,client_name")
        assert first.endswith(",0,Basel")
        assert told("prove", "--client", "Chur").stdout == told("prove", "--client", "2").stdout != ""
        wrong = told("show", "--client", "Churr")
        assert wrong.exit_code == 2
        assert "did you mean 'Chur'?" in wrong.stderr
