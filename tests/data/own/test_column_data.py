"""Hugging Face data sets: real objects of `datasets`, made in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.later import Later

import ipfl
from ipfl.errors import InputError

datasets = Later("datasets")


def rows(count: int = 24, **more: Any) -> Any:
    content = {
        "vector": [[float(number), 1.0] for number in range(count)],
        "label": [number % 2 for number in range(count)],
        "writer": [f"w{number % 3}" for number in range(count)],
        **more,
    }
    return datasets.Dataset.from_dict({key: value for key, value in content.items() if value is not None})


def numbers(samples: Any) -> set[int]:
    return set(samples.x[:, 0].astype(int).tolist())


def test_rows_of_a_client_stay_with_it_and_splits_are_kept() -> None:
    test = rows(9).map(lambda row: {"vector": [row["vector"][0] + 100, 1.0]})
    splits = datasets.DatasetDict({"train": rows(), "test": test.filter(lambda row: row["writer"] != "w2")})
    task = ipfl.Task.from_huggingface(splits, client="writer", model="mlp")
    assert task.client_names == {0: "w0", 1: "w1", 2: "w2"}
    assert numbers(task.data.parts(1).test) == {101, 104, 107}
    parts = task.data.parts(2)  # w2 has no test rows: a quarter of its 8 rows is held back
    assert numbers(parts.train) | numbers(parts.probe) | numbers(parts.test) == set(range(2, 24, 3))
    assert len(parts.test) == 2


def test_classes_by_name_images_and_several_columns() -> None:
    pictures = [Image.new("RGB", (6, 5), (number, 0, 0)) for number in range(24)]
    data = rows(vector=None, image=pictures).cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    task = ipfl.Task.from_huggingface(data.rename_column("label", "kind"), client="writer", model="mlp")
    assert (task.class_names, task.data.input_shape) == (("cat", "dog"), (5, 6, 3))
    assert task.data.parts(0).train.x.dtype == np.uint8
    wide = rows(height=list(np.arange(24.0)), label=["yes", "no"] * 12)
    task = ipfl.Task.from_huggingface(wide, client="writer", features=["vector", "height"], model="mlp")
    assert (task.class_names, task.data.input_shape) == (("no", "yes"), (3,))
    x = task.data.parts(0).train.x
    assert (x[:, 0] == x[:, 2]).all()


def test_a_data_set_for_each_client() -> None:
    data = rows().remove_columns("writer")
    task = ipfl.Task.from_clients(
        {"a": data.select(range(12)), "b": {"train": data, "test": data}}, model="mlp"
    )
    assert task.client_names == {0: "a", 1: "b"}
    assert numbers(task.data.parts(1).test) == set(range(24))


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({}, {"client": "writr"}, "did you mean 'writer'"),
        ({}, {"client": "writer", "target": "lable"}, "did you mean 'label'"),
        ({}, {"client": "writer", "features": ["vectr"]}, "did you mean 'vector'"),
        ({"label": None}, {"client": "writer"}, "which column holds the label"),
        ({"text": ["a"] * 24}, {"client": "writer"}, "'text' does not hold numbers"),
        ({"vector": [[1.0] * (1 + n % 2) for n in range(24)]}, {"client": "writer"}, "different shapes"),
        ({}, {"client": None}, "which column names the client"),
    ],
)
def test_refused(columns: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ipfl.Task.from_huggingface(rows(**columns), **options)


def test_refused_elsewhere() -> None:
    with pytest.raises(InputError, match="expected a data set with columns"):
        ipfl.Task.from_huggingface([1, 2], client="writer")
    with pytest.raises(InputError, match="from_huggingface"):
        ipfl.Task.from_clients(rows())
