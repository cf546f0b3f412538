"""Readers, on small archives written here in the published formats, whole and damaged."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pooch
import pytest

from ipfl.config.task_section import FILE_DATASETS
from ipfl.data import DATASETS, catalogue, fetch_dataset, load_dataset, locate, readers
from ipfl.errors import InputError


def write_cifar(path: Path, per_batch: int = 2) -> None:
    """Image i of a batch: label i, red plane 10·i with a mark of 7 at row 0, column 1; green 1, blue 2."""
    with tarfile.open(path, "w:gz") as archive:
        for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]:
            rows = b""
            for i in range(per_batch):
                red = bytearray([10 * i] * 1024)
                red[1] = 7
                rows += bytes([i]) + bytes(red) + bytes([1] * 1024) + bytes([2] * 1024)
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = len(rows)
            archive.addfile(info, io.BytesIO(rows))


def idx(array: np.ndarray[Any, Any]) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def write_emnist(path: Path) -> None:
    """Labels 3 (a digit), 10 (A), 61 (z); a mark at row 5, column 9 of the stored, transposed image."""
    images = np.zeros((3, 28, 28))
    images[:, 5, 9] = 200
    with zipfile.ZipFile(path, "w") as archive:
        for pool in ("train", "test"):
            archive.writestr(f"gzip/emnist-byclass-{pool}-images-idx3-ubyte.gz", idx(images))
            archive.writestr(f"gzip/emnist-byclass-{pool}-labels-idx1-ubyte.gz", idx(np.array([3, 10, 61])))


def write_hapt(path: Path, root: str = "") -> None:
    """One person, two recordings; walking from reading 1 to 256, a transition, sitting from 301 to 430."""
    labels = "".join(
        f"{exp} 1 {activity} {first} {last}\n"
        for exp in (1, 2)
        for activity, first, last in ((1, 1, 256), (7, 257, 300), (4, 301, 430))
    )
    readings = np.arange(450)[:, None] * np.ones(3)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}RawData/labels.txt", labels)
        for exp in (1, 2):
            for sensor in ("acc", "gyro"):
                text = "\n".join(" ".join(f"{v:.1f}" for v in row) for row in readings)
                archive.writestr(f"{root}RawData/{sensor}_exp{exp:02d}_user01.txt", text)


def test_cifar(tmp_path: Path) -> None:
    write_cifar(tmp_path / "c.tar.gz")
    data = readers.read_cifar10(tmp_path / "c.tar.gz")
    assert data.x_train.shape == (10, 32, 32, 3)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.tolist() == [0, 1] * 5
    assert data.x_train[1, 0, :3].tolist() == [[10, 1, 2], [7, 1, 2], [10, 1, 2]]  # row-major, planes apart
    assert data.y_test.tolist() == [0, 1]


def test_emnist_keeps_letters_upright_with_their_case(tmp_path: Path) -> None:
    write_emnist(tmp_path / "e.zip")
    data = readers.read_emnist(tmp_path / "e.zip")
    assert data.y_train.tolist() == [0, 51]  # A and z; the digit is gone
    assert data.x_train.shape == (2, 28, 28, 1)
    assert np.argwhere(data.x_train[0, ..., 0]).tolist() == [[9, 5]]
    assert data.first_half == tuple(range(26, 52))


@pytest.mark.parametrize("root", ["", "HAPT Data Set/"])
def test_hapt_windows(tmp_path: Path, root: str) -> None:
    write_hapt(tmp_path / "h.zip", root)
    data = readers.read_hapt(tmp_path / "h.zip")
    # 256 readings: windows at 0, 64, 128; 130 readings: one; transitions none. Recording 2 is the test data.
    assert data.y_train.tolist() == [0, 0, 0, 3]
    assert data.y_test.tolist() == [0, 0, 0, 3]
    assert data.x_train.shape == (4, 168)
    # The first feature is the mean of acc-x: 63.5, 127.5, 191.5 and 363.5 (readings 300 to 427);
    # their mean is 186.5 and their variance (123² + 59² + 5² + 177²)/4 = 12491, standardised by its root
    expected = (np.array([63.5, 127.5, 191.5, 363.5]) - 186.5) / np.sqrt(12491)
    assert np.allclose(data.x_train[:, 0], expected, atol=1e-4)


def arrays(n: int = 40, **change: Any) -> dict[str, Any]:
    x = np.arange(n * 3, dtype=np.float64).reshape(n, 3)
    return {"x": x, "y": np.arange(n) % 4, **change}


SPLIT = {f"{kind}_{pool}": value for pool in ("train", "test") for kind, value in arrays(8).items()}


def saved(path: Path, content: dict[str, Any]) -> Path:
    np.savez(path, **content)
    return path


def test_npz_without_split_holds_out_a_fifth_of_each_class(tmp_path: Path) -> None:
    data = load_dataset("npz", path=saved(tmp_path / "a.npz", arrays()))
    assert np.bincount(data.y_test).tolist() == [2, 2, 2, 2]  # 10 of each class
    assert data.classes == 4
    assert data.x_train.dtype == np.float32
    assert not set(data.x_train[:, 0].tolist()) & set(data.x_test[:, 0].tolist())


def test_npz_with_split_and_named_groups(tmp_path: Path) -> None:
    x, y = np.zeros((6, 5, 5), np.uint8), np.array([0, 1, 0, 1, 0, 1])
    content = {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2]}
    content |= {"writer_train": np.array(list("bbccdd")), "writer_test": np.array(list("ad"))}
    data = load_dataset("npz", path=saved(tmp_path / "a.npz", content))
    assert data.x_train.shape == (6, 5, 5, 1)
    assert data.group_train is not None
    assert data.group_test is not None
    assert data.group_train.tolist() == [1, 1, 2, 2, 3, 3]  # a, b, c, d numbered together
    assert data.group_test.tolist() == [0, 3]


@pytest.mark.parametrize(
    "content, says",
    [
        (arrays(x=np.full((40, 3), np.nan)), "not finite"),
        (arrays(x=np.full((40, 3), 1e300)), "not finite"),
        (arrays(x=np.zeros(40)), "has shape"),
        (arrays(x=np.zeros((39, 3))), "differ in length"),
        (arrays(x=np.full((40, 3), "a")), "expected numbers"),
        (arrays(y=np.zeros(40)), "whole numbers"),
        (arrays(y=np.full(40, -1)), "from 0 on"),
        (arrays(y=np.zeros(40, int)), "expected at least 2"),
        ({"y": np.zeros(3, int)}, "lacks 'x'"),
        ({key: SPLIT[key] for key in ("x_train", "y_train")}, "lacks 'x_test', 'y_test'"),
        (
            {
                "x_train": np.zeros((3, 2)),
                "y_train": np.arange(3),
                "x_test": np.zeros((3, 4)),
                "y_test": np.arange(3),
            },
            "x_test is",
        ),
    ],
)
def test_bad_npz_says_what_is_wrong(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        load_dataset("npz", path=saved(tmp_path / "a.npz", content))
    assert "\n" not in str(caught.value)


def test_npz_that_is_no_npz(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", arrays())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="cannot read"):
        load_dataset("npz", path=path)
    with pytest.raises(InputError, match="no file"):
        load_dataset("npz", path=tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"task\.path"):
        load_dataset("npz")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data folder, and no network."""

    def refuse(self: Any, url: str, output_file: Any, pooch_: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(catalogue, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", refuse)
    monkeypatch.delenv("IPFL_DATA", raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["cifar10", "emnist", "har"])
def test_without_network_the_error_names_url_and_variable(nowhere: Path, name: str) -> None:
    for attempt in (lambda: load_dataset(name), lambda: fetch_dataset(name)):
        with pytest.raises(InputError, match="IPFL_DATA") as caught:
            attempt()
        assert DATASETS[name].origin in str(caught.value)
        assert "\n" not in str(caught.value)
    assert locate(name) is None


def test_cached_original_is_used_only_with_the_right_checksum(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere.mkdir()
    path = nowhere / "cifar-10-binary.tar.gz"
    write_cifar(path)
    with pytest.raises(InputError, match="cannot download"):
        load_dataset("cifar10")
    cifar10 = DATASETS["cifar10"]
    assert cifar10.download is not None
    right = replace(cifar10.download, checksum=f"md5:{pooch.file_hash(str(path), 'md5')}")
    monkeypatch.setitem(cast(dict[str, Any], DATASETS), "cifar10", replace(cifar10, download=right))
    assert locate("cifar10") == str(path)
    assert len(load_dataset("cifar10").y_train) == 10
    assert fetch_dataset("cifar10") == path


def test_a_download_of_the_wrong_file_is_refused(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pooch.HTTPDownloader, "__call__", lambda self, url, file, p: Path(file).write_bytes(b"not it")
    )
    with pytest.raises(InputError, match="hash"):
        load_dataset("cifar10")


def test_the_folder_comes_from_the_environment(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.zeros((20, 32, 32, 3), np.uint8), np.arange(20) % 10
    saved(tmp_path / "cifar10.npz", {"x_train": x, "y_train": y, "x_test": x, "y_test": y})
    monkeypatch.setenv("IPFL_DATA", str(tmp_path))
    assert len(load_dataset("cifar10").y_train) == 20
    assert locate("cifar10") == str(tmp_path / "cifar10.npz")
    monkeypatch.setenv("IPFL_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="does not exist"):
        load_dataset("cifar10")


def test_har_npz_checks_its_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPFL_DATA", str(tmp_path))
    good = {
        "x": np.random.default_rng(0).normal(size=(8, 128, 6)),
        "y": np.arange(8) % 6,
        "subject": np.ones(8, int),
        "recording": np.arange(8) % 2,
    }
    for change, says in (
        ({"x": good["x"][:, :100]}, "expected"),
        ({"x": np.full((8, 128, 6), np.inf)}, "not finite"),
        ({"recording": np.zeros(8, int)}, "two recordings"),
        ({"y": np.arange(7) % 6}, "differ in length"),
        ({"y": np.array(0)}, "differ in length"),
        ({"recording": np.zeros((8, 2))}, "differ in length"),
        ({"x": good["x"].astype("U1")}, "expected numbers"),
        ({"x": good["x"] + 1e38}, "not finite"),  # its squares are more than float32 can hold
    ):
        saved(tmp_path / "har.npz", good | change)
        with pytest.raises(InputError, match=says):
            load_dataset("har")
    del good["recording"]
    saved(tmp_path / "har.npz", good)
    with pytest.raises(InputError, match="lacks recording"):
        load_dataset("har")


def test_digits_are_those_of_scikit_learn() -> None:
    """Its own function reads the same file."""
    from sklearn.datasets import load_digits

    points, labels = load_digits(return_X_y=True)
    found = load_dataset("digits")
    read = np.concatenate([found.x_train, found.x_test]).reshape(len(points), -1)
    scaled = np.rint(points * (255 / 16)).astype(np.uint8)

    def sorted_rows(images: Any, digits: Any) -> list[tuple[bytes, int]]:
        return sorted((image.tobytes(), int(digit)) for image, digit in zip(images, digits, strict=True))

    assert sorted_rows(read, np.concatenate([found.y_train, found.y_test])) == sorted_rows(scaled, labels)


def test_digits_split_is_fixed_and_stratified() -> None:
    one, other = load_dataset("digits"), load_dataset("digits")
    assert (len(one.y_train), len(one.y_test)) == (1500, 297)
    assert one.x_test.tobytes() == other.x_test.tobytes()
    assert one.x_train.max() == 255
    # 174 to 183 of each digit, 297/1797 of that is 28.8 to 30.2
    assert set(np.bincount(one.y_test)) <= {28, 29, 30, 31}


def test_digits_are_as_listed() -> None:
    data, info = load_dataset("digits"), DATASETS["digits"]
    assert (data.classes, data.x_train.shape[1:]) == (info.classes, info.shape)
    assert locate("digits") == "bundled"
    assert fetch_dataset("digits") is None
    downloads = {name for name, info in DATASETS.items() if info.download}
    assert downloads | {"digits", *FILE_DATASETS} == set(DATASETS)
    assert locate("npz") is None
    with pytest.raises(InputError, match="nothing to download"):
        fetch_dataset("npz")
