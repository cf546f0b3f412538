"""Tables: columns to points, rows to clients; the same from a DataFrame, CSV and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.later import Later

import ipfl
from ipfl.config.task_section import TaskConfig
from ipfl.data.own.table_encoding import TableColumn, make_encoding
from ipfl.errors import InputError

pd = Later("pandas")

COLUMNS = {"client": "town", "target": "state"}


def table(clients: Any = ("2", "10", "9"), rows: int = 10) -> pd.DataFrame:
    """So many rows for each client: a number that grows, a text of two values, a state of three."""
    count = len(clients) * rows
    return pd.DataFrame(
        {
            "town": np.repeat(list(clients), rows),
            "size": np.arange(count) * 3.0,
            "colour": np.resize(["red", "blue"], count),
            "state": np.resize(["good", "bad", "fair"], count),
        }
    )


def made(rows: pd.DataFrame, **more: Any) -> ipfl.Task:
    return ipfl.Task.from_dataframe(rows, **{**COLUMNS, **more})


def training(task: ipfl.Task, client: int) -> Any:
    parts = task.data.parts(client)
    return np.concatenate([parts.train.x, parts.probe.x])


def all_bytes(task: ipfl.Task) -> list[bytes]:
    parts = [task.data.parts(client) for client in task.data.clients]
    return [getattr(one, part).x.tobytes() for one in parts for part in ("train", "probe", "test")]


class TestColumns:
    def test_text_becomes_categories_and_names_are_kept(self) -> None:
        task = made(table(), standardize="none")
        encoding: Any = task.data.encoding  # type: ignore[attr-defined]
        assert encoding.point_names == ["size", "colour=blue", "colour=red"]
        assert task.client_names == {0: "2", 1: "9", 2: "10"}  # whole numbers by their size
        assert list(task.class_names) == ["bad", "fair", "good"]
        # Row r: size 3 r, red if r is even; state good, bad, fair in turn. Client 9 has rows 20 to 29.
        parts = task.data.parts(1)
        for x, y in ((parts.train.x, parts.train.y), (parts.test.x, parts.test.y)):
            row = np.rint(x[:, 0] / 3).astype(int)
            assert set(row) <= set(range(20, 30))
            assert (x[:, 2] == (row % 2 == 0)).all()
            assert (x[:, 1] + x[:, 2] == 1).all()
            assert (y == np.array([2, 0, 1])[row % 3]).all()
        # 10 rows: 2 to test, 8 to train on, of which 0.2 · 8 = 1.6, rounded 2, are probe
        assert task.data.sizes(1) == {"train": 6, "probe": 2, "goal": 2, "test": 2}

    def test_chosen_features_and_categories_of_numbers(self) -> None:
        rows = table().assign(ward=np.resize([7.0, 12.0, 7.0], 30), unused="x")
        encoding: Any = made(rows, features=["ward"], categorical=["ward"]).data.encoding  # type: ignore[attr-defined]
        assert encoding.point_names == ["ward=7", "ward=12"]

    def test_whole_labels_and_true_or_false(self) -> None:
        rows = table().assign(state=np.resize([5.0, 3.0], 30), is_new=np.resize([True, False], 30))
        task = made(rows, features=["is_new"], standardize="none")
        assert list(task.class_names) == ["3", "5"]
        assert set(np.unique(training(task, 0))) == {0.0, 1.0}


class TestStandardize:
    def test_by_hand(self) -> None:
        # Numbers 1, 3 of the first client and 10, 10 of the second. Together: mean 6, squares 25, 9, 16, 16:
        # spread √16.5. Alone: mean 2 and spread 1; mean 10 and no spread, which is taken as 1.
        raw, group = np.array([[1.0, 1], [3, 0], [10, 1], [10, 1]]), np.array([0, 0, 1, 1])
        columns = [TableColumn("a"), TableColumn("b", ("x",))]
        pooled = make_encoding(columns, raw, "server", group, ["p", "q"])
        assert pooled.mean.tolist() == [[6.0]]
        assert pooled.spread == pytest.approx(np.array([[16.5**0.5]]))
        own = make_encoding(columns, raw, "client", group, ["p", "q"])
        assert (own.mean.tolist(), own.spread.tolist()) == ([[2.0], [10.0]], [[1.0], [1.0]])
        assert own.standardized(raw, group).tolist() == [[-1, 1], [1, 0], [0, 1], [0, 1]]  # b stays 0 and 1

    def test_servers_statistics_are_those_of_the_training_rows(self) -> None:
        task = made(table(), features=["size"])
        x = np.concatenate([training(task, client) for client in range(3)])
        assert x.mean() == pytest.approx(0, abs=1e-6)
        assert x.std() == pytest.approx(1, abs=1e-6)
        assert abs(training(task, 0).mean()) > 0.5


class TestNewRows:
    def test_are_encoded_like_the_table(self) -> None:
        task = made(table(), standardize="client")
        encoding: Any = task.data.encoding  # type: ignore[attr-defined]
        rows = pd.DataFrame({"colour": ["blue"], "size": [6.0], "more": [1]})
        expected = (6 - encoding.mean[2, 0]) / encoding.spread[2, 0]
        assert task.points(rows, client="10").tolist() == [[pytest.approx(expected), 1.0, 0.0]]

    @pytest.mark.parametrize(
        ("rows", "client", "says"),
        [
            ({"size": [1.0], "colour": ["blu"]}, "10", "did you mean 'blue'"),
            ({"size": [1.0]}, "10", "no column 'colour'"),
            ({"size": [1.0], "colour": ["red"]}, None, "client = None is none of them"),
            ({"size": ["a"], "colour": ["red"]}, "10", "'size' should hold numbers"),
        ],
    )
    def test_what_does_not_fit(self, rows: dict[str, Any], client: str | None, says: str) -> None:
        with pytest.raises(InputError, match=says):
            made(table(), standardize="client").points(pd.DataFrame(rows), client)

    def test_only_of_tables(self) -> None:
        task = ipfl.Task.load(clients=2, model="softmax")
        with pytest.raises(InputError, match="no table"):
            task.points(table())


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        ({}, {"client": "twon"}, "no column 'twon' \\(client\\); did you mean 'town'"),
        ({}, {"target": "stat"}, "did you mean 'state'"),
        ({}, {"features": ["sise"]}, "did you mean 'size'"),
        ({}, {"features": ["state"]}, "cannot be one of features"),
        ({"size": np.nan}, {}, "'size' has no value in 30 of 30 rows, first in row 1"),
        ({"state": ["good"] * 29 + [None]}, {}, "'state' has no value in 1 of 30 rows, first in row 30"),
        ({"state": "good"}, {}, "holds only 'good'"),
        ({"state": np.arange(30) / 7}, {}, "names or numbers of classes"),
        ({"size": np.inf}, {}, "infinite"),
        ({"day": np.datetime64("2026-01-01")}, {}, "holds dates"),
        ({"town": " "}, {}, "is empty in some rows"),
        ({}, {"client": None, "clients": 3, "partition": "natural"}, "which column holds the client"),
        (
            {},
            {"client": None, "partition": "random", "clients": 3, "standardize": "client"},
            "needs the column",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_one_line(
    change: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        made(table().assign(**change), **more)
    assert "\n" not in str(caught.value)


def test_too_many_texts() -> None:
    rows = table(rows=40).assign(note=[f"n{number}" for number in range(120)])
    with pytest.raises(InputError, match="'note' holds 120 different texts, such as 'n0'"):
        made(rows)


def test_small_clients() -> None:
    rows = pd.concat([table(), table(["tiny"], 3)])
    with pytest.raises(InputError, match=r"1 of 4 clients have too few points.*tiny \(3\).*leave_out"):
        made(rows)
    task = made(rows, small_clients="leave_out")
    assert "tiny" not in task.client_names.values()
    assert task.data.notes == (  # type: ignore[attr-defined]
        "dataframe: 3 clients, all there are but 1 with fewer than 5 points to train on and one to test on: "
        "tiny (3)",
    )


def test_rows_are_dealt_out_without_a_client() -> None:
    task = made(table(), client=None, partition="dirichlet:1", clients=3)
    assert (len(task.data.clients), task.data.distributions, task.client_names) == (3, 1, {})


class TestFiles:
    @pytest.fixture
    def rows(self) -> pd.DataFrame:
        return table(["007", "NA", "Zug"])

    def load(self, path: Path, **more: Any) -> ipfl.Task:
        return ipfl.Task.load(path=path, **{**COLUMNS, **more})

    @pytest.mark.parametrize(
        ("file", "separator"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.csv.gz", "|")]
    )
    def test_csv_is_the_same_as_the_table(
        self, tmp_path: Path, rows: pd.DataFrame, file: str, separator: str
    ) -> None:
        rows.to_csv(tmp_path / file, sep=separator, index=False)
        task = self.load(tmp_path / file)
        assert task.client_names == {0: "007", 1: "NA", 2: "Zug"}  # neither a number nor missing
        assert task.data.name == file
        assert all_bytes(task) == all_bytes(made(rows))

    def test_parquet_file_and_folder(self, tmp_path: Path, rows: pd.DataFrame) -> None:
        (tmp_path / "parts").mkdir()
        rows.iloc[:15].to_parquet(tmp_path / "parts/a.parquet")
        rows.iloc[15:].to_parquet(tmp_path / "parts/b.parquet")
        rows.to_parquet(tmp_path / "all.parquet")
        whole = all_bytes(self.load(tmp_path / "all.parquet"))
        assert whole == all_bytes(self.load(tmp_path / "parts", dataset="parquet")) == all_bytes(made(rows))

    @pytest.mark.parametrize("file", ["a.csv", "a.parquet", "a.csv.gz"])
    @pytest.mark.parametrize("content", [b"", b"\x00\xff\x00garbage", b'"a,b\n1,2,3\n1'])
    def test_damaged(self, tmp_path: Path, file: str, content: bytes) -> None:
        (tmp_path / file).write_bytes(content)
        with pytest.raises(InputError):
            self.load(tmp_path / file)

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no file"):
            self.load(tmp_path / "a.csv")
        (tmp_path / "a.csv").write_text("a,b\n1,2\n")
        with pytest.raises(InputError, match="which column holds the label"):
            ipfl.Task.load(path=tmp_path / "a.csv")


class TestSettings:
    @pytest.mark.parametrize(
        ("path", "dataset"),
        [("a.npz", "npz"), ("a.CSV", "csv"), ("a.tsv.gz", "csv"), ("a.pq", "parquet"), (".", "images")],
    )
    def test_the_name_of_the_file_says_what_it_is(self, path: str, dataset: str) -> None:
        assert TaskConfig.of({"path": path}).dataset == dataset

    @pytest.mark.parametrize(
        ("task", "says"),
        [
            ({"path": "a.xyz"}, "expected a file .npz, .csv"),
            ({"path": "a.npz", "dataset": "digits"}, "path is read with dataset = npz"),
            ({"clients": None}, "task.clients, their number, is needed"),
        ],
    )
    def test_refused(self, task: dict[str, Any], says: str) -> None:
        with pytest.raises(InputError, match=says) as caught:
            TaskConfig.of(task)
        assert len(str(caught.value)) < 250

    def test_defaults_that_follow(self) -> None:
        config = TaskConfig.of({"path": "a.csv"})
        assert (config.partition, config.distributions, config.clients) == ("natural", "natural", None)
        assert (config.samples, config.model) == (None, "mlp")
        assert TaskConfig.of({"path": "a.csv", "partition": "random"}).distributions == "iid"
        assert TaskConfig.of({"dataset": "har", "partition": "natural"}).clients is None
        assert TaskConfig.of({"dataset": "har", "distributions": "natural", "clients": 4}).clients == 4
        assert TaskConfig.of(config.model_dump(mode="json")) == config
