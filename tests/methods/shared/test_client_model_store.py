"""Models of single clients on the server's disk: a value in the state, bounded in memory, resumable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.client.memory import ClientMemory
from ipfl.keep.checkpoint import Checkpoints
from ipfl.methods.shared.client_model_store import ClientModelStore


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.fixture
def store(tmp_path):
    return ClientModelStore(ClientMemory(tmp_path))


class TestValue:
    def test_a_vector_that_nobody_put_there(self, store):
        with pytest.raises(KeyError):
            store.put({1: vector(1)}, 0)[2]
        start = vector(0)
        assert store.put({1: vector(1)}, 0).get(2, start) is start
        assert store.put({1: vector(1)}, 0).get(1, start).tolist() == [1]

    def test_nobody_can_write_into_it(self, store):
        given_to_it = vector(1, 2)
        full = store.put({1: given_to_it}, 0)
        given_to_it[0] = 9
        with pytest.raises(ValueError, match="read-only"):
            full[1][0] = 9
        assert full[1].tolist() == [1, 2]

    def test_a_round_that_is_played_again(self, store):
        """Its first version does not count, even if somebody still holds a vector of it."""
        held = store.put({1: vector(1)}, 4)[1]
        assert store.put({1: vector(2)}, 4)[1].tolist() == [2]
        assert held.tolist() == [1]

    @given(st.lists(st.dictionaries(st.integers(0, 4), st.floats(-9, 9, width=32)), max_size=6))
    @settings(max_examples=30)
    def test_every_version_is_what_a_dict_would_be(self, tmp_path_factory, puts):
        store, content = ClientModelStore(ClientMemory(tmp_path_factory.mktemp("store"))), {}
        versions = [(store, content)]
        for round, values in enumerate(puts):
            store = store.put({client: vector(value) for client, value in values.items()}, round)
            content = content | values
            versions.append((store, content))
        for each, expected in versions:
            assert {client: float(each[client][0]) for client in each.clients} == expected
            assert [client in each for client in range(5)] == [client in expected for client in range(5)]
            assert len(each) == len(expected)

    def test_through_a_checkpoint(self, store, tmp_path):
        """The file says whose vectors of which rounds; where they lie is known to the reader."""
        full = store.put({2: vector(7)}, 0).put({1: vector(8)}, 1)
        folder = Checkpoints(tmp_path / "checkpoint")
        elsewhere = ClientModelStore(store.memory)
        back = folder.read(folder.write(1, full), elsewhere)
        assert back == full
        assert back.memory is elsewhere.memory
        assert {client: back[client].tolist() for client in back.clients} == {1: [8], 2: [7]}
        content = (tmp_path / "checkpoint" / "round-1.safetensors").read_bytes()
        assert str(tmp_path).encode() not in content


class TestMemory:
    SIZE = 100_000

    def full(self, store: ClientModelStore, clients: int) -> ClientModelStore:
        for client in range(clients):
            store = store.put({client: np.full(self.SIZE, client, np.float32)}, client)
        return store

    def test_many_holders_of_one_cost_one(self, store):
        full = self.full(store, 1)
        held = [full[0] for _ in range(30)]
        assert all(one is held[0] for one in held)
        later = full.put({5: vector(1)}, 5)
        assert later[0] is held[0]

    def test_vectors_that_nobody_holds_are_released(self, store):
        full = self.full(store, 2)
        held = full[0], full[1]
        assert len(full.in_use) == 2
        del held
        assert len(full.in_use) == 0
