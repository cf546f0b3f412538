"""What fuzzing and reading found in the readers of data files, each by itself."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.test_readers import leaf
from tests.fuzz.inputs import little_memory
from tests.fuzz.test_data_files import NAMED, SPLIT, X, Y, member, npy, npz, zipped

from ipfl.data import readers
from ipfl.data.dataset import Dataset
from ipfl.data.own import archives
from ipfl.data.own.own_clients import from_clients
from ipfl.errors import InputError


def refused(path: Path, content: bytes, read: Callable[[Path], Dataset] = readers.read_npz) -> str:
    path.write_bytes(content)
    with little_memory(), pytest.raises(InputError) as caught:
        read(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    says = refused(tmp_path / "a.npz", npz(x=X, y=np.array([Bomb()] * 20)))
    assert "pickled objects" in says
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "shape", ["(10**12,)", "(1000000000000,)", "(2**40, 2**40)", "(0, -1)", "(20, True)"]
)
def test_an_array_that_claims_to_be_larger_than_it_is(tmp_path: Path, shape: str) -> None:
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"
    assert "cannot read" in refused(tmp_path / "a.npz", zipped({"y.npy": member(head, b"\0" * 160)}))


@pytest.mark.parametrize("head", ["-" * 9000 + "1", "(" * 9000, "{", "1L", "'<U0'"])
def test_heads_of_arrays_that_python_cannot_read(tmp_path: Path, head: str) -> None:
    refused(tmp_path / "a.npz", zipped({"y.npy": member(head, b"")}))


def test_an_array_of_nothing_can_have_any_length(tmp_path: Path) -> None:
    head = "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}"
    names = {"x.npy": npy(X), "y.npy": npy(Y), "client.npy": member(head, b"")}
    refused(tmp_path / "a.npz", zipped(names))


def test_bzip2_makes_gigabytes_of_a_kilobyte(tmp_path: Path) -> None:
    bomb = zipped({"x.npy": bytes(2**24)}, zipfile.ZIP_BZIP2)  # 16 MB here; 64 times as much is as short
    assert len(bomb) < 1000
    assert "another way" in refused(tmp_path / "a.npz", bomb)


def test_sizes_that_no_archive_of_ours_has(tmp_path: Path) -> None:
    bomb = bytearray(zipped({"x.npy": npy(X)}))
    at = bomb.rindex(b"PK\x01\x02") + 24  # the size in the directory of the archive
    bomb[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    assert "would unpack to 4294967294 bytes" in refused(tmp_path / "a.npz", bytes(bomb))


def test_gzip_within_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 MB of zeros are 4 kB as gzip, and 300 bytes as gzip in a zip: a thousandfold twice.
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 2**20)
    bomb = gzip.compress(bytes(4 * 2**20), 9)
    stem = "gzip/emnist-byclass-train-{}-ubyte.gz".format
    packed = zipped({stem("labels-idx1"): bomb, stem("images-idx3"): bomb}, zipfile.ZIP_DEFLATED)
    assert len(packed) < 1000
    assert "would unpack to more than" in refused(tmp_path / "e.zip", packed, readers.read_emnist)


def test_a_sparse_file_of_terabytes_in_a_tar(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.pax_headers = {
            "GNU.sparse.size": str(2**40),
            "GNU.sparse.numblocks": "1",
            "GNU.sparse.map": "0,0",
        }
        archive.addfile(info)
    assert "no file of images" in refused(tmp_path / "c.tar.gz", file.getvalue(), readers.read_cifar10)


def test_stretches_beyond_their_recording(tmp_path: Path) -> None:
    readings = b"0.5 0.25 1\n" * 450
    names = [f"RawData/{sensor}_exp0{e}_user01.txt" for sensor in ("acc", "gyro") for e in (1, 2)]
    files = dict.fromkeys(names, readings)

    def packed(labels: bytes) -> bytes:
        return zipped({**files, "RawData/labels.txt": labels})

    for labels in (b"1 1 1 -900000000000000000 256\n", b"1 1 1 nan 256\n", b"1 1 1 1 450\n" * 20_000):
        refused(tmp_path / "h.zip", packed(labels), readers.read_hapt)
    # An end far beyond the recording's means the recording's: (450 − 128)/64 + 1 = 6 windows each.
    (tmp_path / "h.zip").write_bytes(packed(b"1 1 1 1 900000000000000000\n2 1 2 1 900000000000000000\n"))
    with little_memory():
        assert len(readers.read_hapt(tmp_path / "h.zip").y_train) == 6


@pytest.mark.parametrize("high", [10**12, 2**63 - 1, 2**64 - 1])
def test_labels_that_would_need_a_huge_model(tmp_path: Path, high: int) -> None:
    y = np.array([0] * 19 + [high], np.uint64)
    assert "numbered from 0" in refused(tmp_path / "a.npz", npz(x=X, y=y))
    if high < 2**63:
        with pytest.raises(InputError, match="numbered from 0"):
            from_clients([(X, y.astype(np.int64))] * 2)


def test_single_numbers_and_tables_in_the_wrong_places(tmp_path: Path) -> None:
    for change in (
        {"x": np.array(1)},
        {"y": np.array(1)},
        {"y": Y[:, None]},
        {"client": np.zeros((20, 2))},
        {"x": np.zeros((20, 3), "M8[s]")},
    ):
        refused(tmp_path / "a.npz", npz(**{**NAMED, **change}))
    refused(tmp_path / "a.npz", npz(**{**SPLIT, "y_train": np.zeros(20, "M8[s]")}))
    refused(tmp_path / "a.npz", npz(**{**SPLIT, "y_train": np.array(3)}))


def test_har_that_is_not_numbers(tmp_path: Path) -> None:
    good = {
        "x": np.zeros((8, 128, 6)),
        "y": np.arange(8) % 6,
        "subject": np.ones(8, int),
        "recording": np.arange(8) % 2,
    }
    for change in (
        {"x": good["x"].astype("U1")},
        {"y": np.array(0)},
        {"recording": np.zeros((8, 2))},
        {"x": good["x"] + 1e38},
    ):
        refused(tmp_path / "h.npz", npz(**{**good, **change}), readers.read_har_npz)


def test_leaf_nested_or_empty(tmp_path: Path) -> None:
    file = tmp_path / "all_data_0.json"
    texts = ["[" * 100_000, leaf({"f": 0}), leaf({"f": 2}).replace("1.0", "1" + "0" * 400, 1), "9" * 5000]
    for text in texts:
        file.write_text(text)
        with little_memory(), pytest.raises(InputError):
            readers.read_femnist(tmp_path)


def test_own_arrays_without_a_shape() -> None:
    with pytest.raises(InputError, match="pair of arrays"):
        from_clients([([[1, 2], [3]], [0, 1])])
