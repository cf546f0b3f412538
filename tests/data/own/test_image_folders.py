"""Folders of images: a folder per class, per client and class, and an official split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ipfl
from ipfl.config.task_section import TaskConfig
from ipfl.data import Dataset, load_dataset
from ipfl.errors import InputError


def draw(file: Path, value: int = 7, size: tuple[int, int] = (6, 5), mode: str = "L") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(file)


def read(path: Path, **more: Any) -> Dataset:
    settings = TaskConfig.of({"path": path, "dataset": "images", **more})
    return load_dataset("images", path=path, settings=settings)


def test_folder_per_client_and_class(tmp_path: Path) -> None:
    for client in ("b", "a"):
        for label in ("10", "9"):
            for number in range(4):
                draw(tmp_path / "pics" / client / label / f"{number}.png", value=int(label))
    (tmp_path / "pics/a/9/notes.txt").write_text("no image")
    task = ipfl.Task.load(path=tmp_path / "pics", model="softmax")
    assert (task.client_names, task.class_names) == ({0: "a", 1: "b"}, ("9", "10"))
    assert (task.data.name, task.data.input_shape) == ("pics", (5, 6, 1))  # height, width, channels
    parts = task.data.parts(0)
    assert (parts.train.x[:, 0, 0, 0] == np.array([9, 10])[parts.train.y]).all()
    # 8 images: round(0.2 · 16) = 3 test points for both together, 2 for the first and 1 for the other
    assert [task.data.sizes(client)["test"] for client in (0, 1)] == [2, 1]


def test_folder_per_class_is_dealt_out(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for number in range(10):
            draw(tmp_path / label / f"{number}.png")
    assert read(tmp_path).group_train is None
    task = ipfl.Task.load(path=tmp_path, partition="random", clients=2, model="softmax")
    assert len(task.data.clients) == 2
    with pytest.raises(InputError, match="does not say whose points"):
        ipfl.Task.load(path=tmp_path, model="softmax")


def test_official_split(tmp_path: Path) -> None:
    for pool, value in (("train", 1), ("test", 2), ("val", 3)):
        for label in ("cat", "dog"):
            draw(tmp_path / pool / label / "1.png", value)
    data = read(tmp_path)
    assert sorted(data.x_train[:, 0, 0, 0].tolist()) == [1, 1, 3, 3]
    assert data.x_test[:, 0, 0, 0].tolist() == [2, 2]


def test_colour_size_and_depth(tmp_path: Path) -> None:
    draw(tmp_path / "a/1.png", 9)
    draw(tmp_path / "b/1.png", 200, mode="RGB", size=(12, 10))
    Image.fromarray(np.full((10, 12), 65535, np.uint16)).save(tmp_path / "b/2.png")
    with pytest.raises(InputError, match=r"2 of 3 are 12×10, but not .*1.png.*image_size = 10"):
        read(tmp_path)
    data = read(tmp_path, image_size=4)
    pixels = {tuple(image[0, 0]) for image in np.concatenate([data.x_train, data.x_test])}
    assert data.x_train.shape[1:] == (4, 4, 3)
    assert pixels == {(9, 9, 9), (200, 0, 0), (255, 255, 255)}  # 16 bits are scaled, not cut off


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "found no images"),
        (["a.png"], "0 folders deep"),
        (["a/1.png", "a/b/1.png"], "1 and 2 folders deep"),
        (["a/b/c/1.png"], "3 folders deep"),
        (["a/1.png", "a/2.png"], "only the class 'a'"),
    ],
)
def test_refused(tmp_path: Path, files: list[str], says: str) -> None:
    for file in files:
        draw(tmp_path / file)
    with pytest.raises(InputError, match=says):
        read(tmp_path)


def test_damaged_and_absent(tmp_path: Path) -> None:
    draw(tmp_path / "a/1.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/1.png").write_bytes((tmp_path / "a/1.png").read_bytes()[:40])
    with pytest.raises(InputError, match=r"cannot read .*b/1.png"):
        read(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        read(tmp_path / "c")
