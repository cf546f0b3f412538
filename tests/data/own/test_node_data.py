"""Data of one client on its own machine: what is read, and what nodes could not agree on."""

import numpy as np
import pytest

from ipfl.config.task_section import TaskConfig
from ipfl.data.own.node_data import read_node_data
from ipfl.errors import InputError

ROWS = [
    "age,pressure,outcome",
    *(f"{20 + row},{row % 7},{'ill' if row % 3 else 'well'}" for row in range(20)),
]


def write_rows(place, lines=ROWS):
    path = place / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(**given):
    return TaskConfig.of({"target": "outcome", **given})


def test_a_table(tmp_path):
    """20 rows: 4 to test; classes in the order of the run's config, which also knows some from elsewhere."""
    parts = read_node_data(write_rows(tmp_path), settings(class_names=["dead", "well", "ill"]))
    x, y = parts["train"]
    assert (x.shape, len(parts["test"][1])) == ((16, 2), 4)
    labels = np.concatenate([y, parts["test"][1]])
    assert (set(labels.tolist()), int((labels == 1).sum())) == ({1, 2}, 7)  # rows 0, 3, …, 18 are well
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)  # by its own mean and spread
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-5)


def test_labels_that_are_numbers(tmp_path):
    """Classes 1 and 3 stay 1 and 3: other nodes may have 0 and 2."""
    lines = ["age,outcome", *(f"{row},{3 if row % 2 else 1}" for row in range(10))]
    parts = read_node_data(write_rows(tmp_path, lines), settings(standardize="none"))
    assert set(parts["train"][1].tolist()) == {1, 3}
    assert parts["train"][0].max() > 5


def test_parquet_and_images(tmp_path):
    pandas = pytest.importorskip("pandas")
    image = pytest.importorskip("PIL.Image")
    pandas.read_csv(write_rows(tmp_path)).to_parquet(tmp_path / "visits.parquet")
    named = settings(class_names=["ill", "well"])
    csv = read_node_data(tmp_path / "visits.csv", named)
    parquet = read_node_data(tmp_path / "visits.parquet", named)
    np.testing.assert_array_equal(csv["train"][0], parquet["train"][0])
    for number in range(10):
        folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        image.new("L", (4, 4), number).save(folder / f"{number}.png")
    parts = read_node_data(tmp_path / "photos", TaskConfig.of({"class_names": ["bird", "dog", "cat"]}))
    assert parts["train"][0].shape[1:] == (4, 4, 1)
    assert set(parts["train"][1].tolist()) == {1, 2}


@pytest.mark.parametrize(
    "lines, given, told",
    [
        (ROWS, {}, "list all classes in the run's config"),
        (ROWS, {"class_names": ["well", "dead"]}, "'ill' is none of task.class_names"),
        (["sex,outcome", *(f"{'f' if n % 2 else 'm'},{n % 2}" for n in range(9))], {}, "column 'sex' names"),
        (["a,b", "1,2"], {}, "no column 'outcome'"),
    ],
)
def test_refused(tmp_path, lines, given, told):
    with pytest.raises(InputError, match=told):
        read_node_data(write_rows(tmp_path, lines), settings(**given))


def test_npz(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((3, 2)), y=[0, 1, 1], x_test=np.zeros((1, 2)), y_test=[0])
    parts = read_node_data(tmp_path / "data.npz", TaskConfig())
    assert {name: len(y) for name, (_, y) in parts.items()} == {"train": 3, "test": 1}
