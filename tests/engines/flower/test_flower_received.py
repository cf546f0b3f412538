"""What a node keeps of what it was sent: both sides follow the same rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.engines.flower.messages import digest
from ipfl.engines.flower.received import KEPT, Held, Received


def blob(number):
    return np.full(3, number, np.float32)


def blobs(*numbers):
    return {digest(blob(number)): blob(number) for number in numbers}


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=12))
def test_server_and_node_agree(tmp_path_factory, asks):
    """What the server believes that the node holds is what the node finds."""
    received, held = Received(tmp_path_factory.mktemp("node")), Held()
    for ask in asks:
        received.keep(blobs(*ask))
        held.note(blobs(*ask))
        for key, array in blobs(*range(6)).items():
            found = Received(received.folder).find([key])  # another process, with nothing in memory
            assert (key in held) == (key in found)
            assert key not in found or found[key].tobytes() == array.tobytes()


def test_old_arrays_go(tmp_path):
    received = Received(tmp_path / "3")
    received.keep(blobs(1, 2))
    for _ in range(KEPT - 1):
        received.keep(blobs(2))
    assert set(received.find(blobs(1, 2))) == set(blobs(1, 2))
    received.keep(blobs(3))
    assert set(received.find(blobs(1, 2, 3))) == set(blobs(2, 3))
    assert len(list(received.folder.iterdir())) == 3  # two arrays and the index


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [damage, lambda path: path.write_bytes(b"junk"), lambda path: path.unlink()])
def test_a_broken_file_is_an_array_that_is_not_there(tmp_path, harm):
    received = Received(tmp_path)
    received.keep(blobs(1, 2))
    (key,) = blobs(1)
    harm(tmp_path / key)
    assert set(received.find(blobs(1, 2))) == set(blobs(2))


def test_a_broken_index_is_an_empty_one(tmp_path):
    received = Received(tmp_path)
    received.keep(blobs(1))
    (tmp_path / "index.json").write_text("{")
    received.keep(blobs(2))
    assert set(received.find(blobs(1, 2))) == set(blobs(2))
