"""What fuzzing and reading found in the readers of data files, each by itself."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzz.inputs import little_memory
from tests.fuzz.test_data_files import NAMED, SPLIT, X, Y, member, npy, npz, zipped

from ipfl.data import readers
from ipfl.data.own.own_clients import from_clients
from ipfl.errors import InputError


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with little_memory(), pytest.raises(InputError) as caught:
        readers.read_npz(path)
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


def test_own_arrays_without_a_shape() -> None:
    with pytest.raises(InputError, match="pair of arrays"):
        from_clients([([[1, 2], [3]], [0, 1])])
