"""Data files: the user's `.npz`, and a user's own clients. Published archives have a checksum."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.fuzz.inputs import clean, edited, feed, hostile, refused

from ipfl.data import readers
from ipfl.data.dataset import Dataset
from ipfl.data.own.own_clients import from_clients


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def sound(data: Dataset | None) -> None:
    """A data set that was let through keeps its promises, as training relies on them."""
    if data is not None:
        for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
            assert np.isfinite(x).all()
            assert len(x) == len(y) > 0
            assert 0 <= y.min() <= y.max() < data.classes
        assert data.classes <= max(1000, 2 * (len(data.y_train) + len(data.y_test)))


def reads(path: Path, read: Callable[[Path], Dataset]) -> Callable[[bytes], None]:
    """A check that writes its input to the file and reads it."""

    def check(content: bytes) -> None:
        path.write_bytes(content)
        sound(clean(lambda: read(path)))

    return check


X, Y = np.arange(60, dtype=np.uint8).reshape(20, 3), np.arange(20) % 4
SPLIT = {"x_train": X, "y_train": Y, "x_test": X[:8], "y_test": Y[:8]}
NAMED = {"x": X.astype(np.float32), "y": Y, "client": np.array(list("abcdabcdabcdabcdabcd"))}
DESCR = [
    b"'<f8'",
    b"'|O'",
    b"'<U9'",
    b"True",
    b"(20,)",
    b"(2000000000, 2000000000)",
    b"(-1,)",
    b"'descr'",
    b"PK\x01\x02",
]


@pytest.mark.slow
def test_edited_npz(tmp_path: Path) -> None:
    feed(
        250,
        edited([npz(**NAMED), npz(**SPLIT)], DESCR),
        reads(tmp_path / "a.npz", readers.read_npz),
    )


def arrays() -> st.SearchStrategy[Any]:
    """Arrays of all kinds and shapes, most of them no points, labels or groups."""
    shapes = st.sampled_from(
        [(), (0,), (1,), (20,), (20, 3), (20, 0), (19, 3), (20, 3, 3), (20, 1, 1, 1, 1), (3, 20)]
    )
    kinds = st.sampled_from(
        ["u1", "i1", "i8", "u8", "f2", "f4", "f8", "?", "c8", "U3", "S2", "M8[s]", "m8[s]", "V4"]
    )
    fills = st.sampled_from([0, 1, 3, 255, -1, 2**31, 2**63 - 1, 2**64 - 1, np.nan, np.inf, 1e300])
    return st.builds(_filled, shapes, kinds, fills, st.booleans())


def _filled(shape: tuple[int, ...], kind: str, fill: float, spread: bool) -> Any:
    with np.errstate(all="ignore"):
        flat = np.full(shape, fill, dtype=object)
        if spread and flat.size:
            flat.reshape(-1)[::2] = 0
        try:
            return flat.astype(kind)
        except (TypeError, ValueError, OverflowError):
            return np.zeros(shape, kind)


@pytest.mark.slow
def test_arrays_in_npz(tmp_path: Path) -> None:
    """Well-formed files whose arrays do not fit."""
    changes = st.dictionaries(
        st.sampled_from([*SPLIT, *NAMED, "writer_train", "writer_test", "client_train", "client_test"]),
        arrays(),
        min_size=1,
        max_size=3,
    )
    read = reads(tmp_path / "a.npz", readers.read_npz)
    given = st.tuples(st.sampled_from([SPLIT, NAMED]), changes)
    feed(250, given, lambda drawn: read(npz(**{**drawn[0], **drawn[1]})))


HEADER = {"descr": "<i8", "fortran_order": False, "shape": (20,)}


def member(header: str, body: bytes) -> bytes:
    text = header.encode("utf-8", "replace")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text[:65535] + body


@pytest.mark.slow
def test_headers_in_npz(tmp_path: Path) -> None:
    """The text at the head of an array, which says how large it is and what it holds."""
    words = [
        "|O",
        "<f8",
        "<U1000000000",
        [["a", "<i8"]],
        [10**12],
        [2**40, 2**40],
        [0, 2**62],
        [-20],
        [True],
        [20.0],
    ]
    trees = hostile({**HEADER, "shape": [20]}, words)

    def text(header: Any) -> str:
        if isinstance(header, dict) and isinstance(header.get("shape"), list):
            header = {**header, "shape": tuple(header["shape"])}
        return repr(header)

    texts = trees.map(text) | st.sampled_from(
        ["", "{", "-" * 9000 + "1", "(" * 9000, "{'descr': 1L}", "'", "\\\n x"]
    )
    read = reads(tmp_path / "a.npz", readers.read_npz)
    body = Y.astype("<i8").tobytes()
    whole = st.tuples(texts, st.sampled_from(["y.npy", "x.npy", "y", "../y.npy"]))
    feed(
        200,
        whole,
        lambda drawn: read(zipped({"x.npy": npy(X), "y.npy": npy(Y), drawn[1]: member(drawn[0], body)})),
    )


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_own_clients() -> None:
    """What a user passes in Python: arrays, dicts and data sets of pairs."""
    pair = st.tuples(arrays() | st.just(X), arrays() | st.just(Y))
    other = st.sampled_from(
        [
            (),
            (X,),
            (X, Y, Y),
            X,
            [(X[0], 1), (X[1], 0)],
            [(X[0], "a")],
            ([[1, 2], [3]], [0, 1]),
            [1],
            "ab",
            None,
            5,
            {},
            b"ab",
            {"train": (X, Y), "test": (X, Y)},
            {"train": None},
            {"test": (X, Y)},
            {1: 2},
        ]
    )
    clients = st.lists(pair | other | st.just((X, Y)), min_size=1, max_size=2)

    def check(given: list[Any]) -> None:
        data = clean(lambda: from_clients(given))
        if data is not None:
            data.parts(0)

    feed(200, clients, check)


class TestFound:
    """What fuzzing and reading found, each by itself."""

    def refused(self, path: Path, content: bytes, says: str | None = None) -> None:
        path.write_bytes(content)
        refused(lambda: readers.read_npz(path), says)

    def test_pickles_are_never_loaded(self, tmp_path: Path) -> None:
        class Bomb:
            def __reduce__(self) -> Any:
                return (Path.touch, (tmp_path / "exploded",))

        self.refused(tmp_path / "a.npz", npz(x=X, y=np.array([Bomb()] * 20)), "pickled objects")
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize(
        "shape", ["(10**12,)", "(1000000000000,)", "(2**40, 2**40)", "(0, -1)", "(20, True)"]
    )
    def test_an_array_that_claims_to_be_larger_than_it_is(self, tmp_path: Path, shape: str) -> None:
        head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}"
        self.refused(tmp_path / "a.npz", zipped({"y.npy": member(head, b"\0" * 160)}), "cannot read")

    def test_an_array_of_nothing_can_have_any_length(self, tmp_path: Path) -> None:
        head = "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}"
        names = {"x.npy": npy(X), "y.npy": npy(Y), "client.npy": member(head, b"")}
        self.refused(tmp_path / "a.npz", zipped(names))

    def test_bzip2_makes_gigabytes_of_a_kilobyte(self, tmp_path: Path) -> None:
        bomb = zipped({"x.npy": bytes(2**24)}, zipfile.ZIP_BZIP2)  # 16 MB; 64 times as much is as short
        assert len(bomb) < 1000
        self.refused(tmp_path / "a.npz", bomb, "another way")

    def test_sizes_that_no_archive_of_ours_has(self, tmp_path: Path) -> None:
        bomb = bytearray(zipped({"x.npy": npy(X)}))
        at = bomb.rindex(b"PK\x01\x02") + 24  # the size in the directory of the archive
        bomb[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
        self.refused(tmp_path / "a.npz", bytes(bomb), "would unpack to 4294967294 bytes")

    @pytest.mark.parametrize("high", [10**12, 2**63 - 1, 2**64 - 1])
    def test_labels_that_would_need_a_huge_model(self, tmp_path: Path, high: int) -> None:
        y = np.array([0] * 19 + [high], np.uint64)
        self.refused(tmp_path / "a.npz", npz(x=X, y=y), "numbered from 0")
        if high < 2**63:
            refused(lambda: from_clients([(X, y.astype(np.int64))] * 2), "numbered from 0")
