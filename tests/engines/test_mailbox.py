"""The shared-memory box through which vectors go from one process to another."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.engines import mailbox
from ipfl.engines.mailbox import Mailbox

SIZES = st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 40), max_size=3), max_size=8)


@pytest.fixture
def box():
    """Writer and reader: two objects with one file, as after a fork."""
    writer = Mailbox()
    reader = copy.copy(writer)
    reader._held = {}
    yield writer, reader
    reader._map = None
    writer.close()


def held(writer: Mailbox) -> int:
    return writer._end * 4


@given(sizes=SIZES, keep=st.sampled_from([0, 64, 400, 10**6]), seed=st.integers(0, 99))
@settings(max_examples=80)
def test_whatever_is_put_is_what_is_got(sizes, keep, seed):
    """Any sizes, zero included, in any number of records; the box grows, or starts again when it is full."""
    rng = np.random.default_rng(seed)
    writer = Mailbox()
    reader = copy.copy(writer)
    before, mailbox.MAX_HELD_BYTES, got = mailbox.MAX_HELD_BYTES, keep, {}
    try:
        for record in sizes:
            vectors = {name: rng.normal(size=size).astype(np.float32) for name, size in record.items()}
            got = reader.get(writer.put(vectors))
            assert {name: view.tobytes() for name, view in got.items()} == {
                name: vector.tobytes() for name, vector in vectors.items()
            }
            assert held(writer) <= max(keep, sum(vector.nbytes for vector in vectors.values()))
    finally:
        mailbox.MAX_HELD_BYTES = before
        del got, reader
        writer.close()


def test_one_object_is_written_once(box):
    writer, reader = box
    shared, own = np.arange(5, dtype=np.float32), np.ones(3, np.float32)
    first = writer.put({"global": shared, "again": shared})
    assert first["global"] == first["again"] == (0, 5)
    second = writer.put({"global": shared, "own": own})
    assert second == {"global": (0, 5), "own": (5, 3)}
    assert held(writer) == 8 * 4
    assert reader.get(second)["own"].tolist() == [1, 1, 1]


def test_clear_forgets(box):
    writer, reader = box
    vector = np.zeros(3, np.float32)
    writer.put({"a": vector})
    vector[:] = 7  # a later phase may send the same array with other contents
    writer.clear()
    assert reader.get(writer.put({"a": vector}))["a"].tolist() == [7, 7, 7]
