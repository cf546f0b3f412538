"""Models of single clients on the server's disk: a value in the state, bounded in memory, resumable."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.killed_runs import die_at_call, is_killed, resume_or_restart, run_six_rounds

import ipfl
from ipfl.client import memory as client_memory
from ipfl.client.memory import ClientMemory
from ipfl.ledger.store import RunStore
from ipfl.methods.client_model_store import ClientModelStore
from ipfl.runs.checkpoint import Checkpoints


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.fixture
def shelf(tmp_path):
    return ClientModelStore(ClientMemory(tmp_path))


class TestValue:
    def test_put_leaves_the_old_shelf_as_it_was(self, shelf):
        one = shelf.put({3: vector(1), 1: vector(2)}, 0)
        two = one.put({3: vector(5), 2: vector(6)}, 1)
        assert shelf.clients == ()
        assert [one[client].tolist() for client in one.clients] == [[2], [1]]
        assert [two[client].tolist() for client in two.clients] == [[2], [6], [5]]
        assert one.clients == (1, 3)
        assert two.clients == (1, 2, 3)
        assert (3 in shelf, 3 in one, 2 in one, 2 in two) == (False, True, False, True)
        assert [len(each) for each in (shelf, one, two)] == [0, 2, 3]

    def test_a_vector_that_nobody_put_there(self, shelf):
        with pytest.raises(KeyError):
            shelf.put({1: vector(1)}, 0)[2]
        start = vector(0)
        assert shelf.put({1: vector(1)}, 0).get(2, start) is start
        assert shelf.put({1: vector(1)}, 0).get(1, start).tolist() == [1]

    def test_nobody_can_write_into_it(self, shelf):
        given_to_it = vector(1, 2)
        full = shelf.put({1: given_to_it}, 0)
        given_to_it[0] = 9
        with pytest.raises(ValueError, match="read-only"):
            full[1][0] = 9
        assert full[1].tolist() == [1, 2]

    def test_a_round_that_is_played_again(self, shelf):
        """Its first version was void, even if somebody still holds a vector of it."""
        held = shelf.put({1: vector(1)}, 4)[1]
        assert shelf.put({1: vector(2)}, 4)[1].tolist() == [2]
        assert held.tolist() == [1]

    @given(st.lists(st.dictionaries(st.integers(0, 4), st.floats(-9, 9, width=32)), max_size=6))
    @settings(max_examples=30)
    def test_every_version_is_what_a_dict_would_be(self, tmp_path_factory, puts):
        shelf, content = ClientModelStore(ClientMemory(tmp_path_factory.mktemp("shelf"))), {}
        versions = [(shelf, content)]
        for round, values in enumerate(puts):
            shelf = shelf.put({client: vector(value) for client, value in values.items()}, round)
            content = content | values
            versions.append((shelf, content))
        for each, expected in versions:
            assert {client: float(each[client][0]) for client in each.clients} == expected

    def test_through_a_checkpoint(self, shelf, tmp_path):
        """The file says whose vectors of which rounds; where they lie is known to whoever reads it."""
        full = shelf.put({2: vector(7)}, 0).put({1: vector(8)}, 1)
        folder = Checkpoints(tmp_path / "checkpoint")
        elsewhere = ClientModelStore(shelf.place)
        back = folder.read(folder.write(1, full), elsewhere)
        assert back == full
        assert back.place is elsewhere.place
        assert {client: back[client].tolist() for client in back.clients} == {1: [8], 2: [7]}
        content = (tmp_path / "checkpoint" / "round-1.safetensors").read_bytes()
        assert str(tmp_path).encode() not in content


class TestMemory:
    SIZE = 100_000
    BYTES = 4 * SIZE

    def full(self, shelf: ClientModelStore, clients: int) -> ClientModelStore:
        for client in range(clients):
            shelf = shelf.put({client: np.full(self.SIZE, client, np.float32)}, client)
        return shelf

    def test_one_at_a_time_costs_one(self, shelf):
        # Reading may hold a vector and the buffer it came in, next to the one before: 4 at most, not 30.
        full = self.full(shelf, 30)
        tracemalloc.start()
        total = sum(float(full[client][0]) for client in full.clients)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert total == sum(range(30))
        assert peak < 4 * self.BYTES

    def test_many_holders_of_one_cost_one(self, shelf):
        full = self.full(shelf, 1)
        held = [full[0] for _ in range(30)]
        assert all(one is held[0] for one in held)
        later = full.put({5: vector(1)}, 5)
        assert later[0] is held[0]

    def test_whoever_is_done_lets_go(self, shelf):
        full = self.full(shelf, 2)
        held = full[0], full[1]
        assert len(full.in_use) == 2
        del held
        assert len(full.in_use) == 0

    def test_the_disk_holds_two_versions_at_most_after_commits(self, shelf, tmp_path):
        for round in range(9):
            shelf = shelf.put({1: vector(round)}, round)
            shelf.place.committed = round
        assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["7.safetensors", "8.safetensors"]


@pytest.fixture(scope="module")
def task():
    return ipfl.Task.load(clients=6, samples=20, test_samples=20, model="softmax", seed=3)


@pytest.mark.parametrize("method", ["fedfomo", "fedamp"])
class TestRun:
    def contents(self, folder):
        """All that must be equal after an interruption: what a run leaves, and the newest on the shelf."""
        files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
        versions = sorted((folder / "client_models").glob("*/*.safetensors"), key=lambda path: int(path.stem))
        kept = {path.parent.name: (path.name, path.read_bytes()) for path in versions}
        memory = sorted((folder / "memory").glob("*/*.safetensors"), key=lambda path: int(path.stem))
        remembered = {path.parent.name: path.read_bytes() for path in memory}
        with RunStore.open(folder) as store:
            return files, kept, remembered, (folder / "metrics.jsonl").read_bytes(), store.head()

    def test_killed_and_resumed_is_bit_identical(self, task, method, tmp_path):
        """Killed in the middle of a shelf's file, then between a checkpoint and its commit; resumed twice.

        In a round four clients write their memory, then the server their models: the 14th file is the second
        of the shelf in round 1.
        """
        run_six_rounds(task, method, tmp_path / "whole" / "run")
        out = tmp_path / "run"
        half_a_file = lambda: die_at_call(client_memory, "write_record", 14, half=True)  # noqa: E731
        unsettled = lambda: die_at_call(  # noqa: E731
            Checkpoints, "write", 2, after=True
        )
        for place in (half_a_file, unsettled):
            assert is_killed(task, method, out, place)
        run_six_rounds(task, method, out, **resume_or_restart(out))
        assert self.contents(out) == self.contents(tmp_path / "whole" / "run")

    def test_files(self, task, method, tmp_path):
        run_six_rounds(task, method, tmp_path / "run")
        counts = [len(list(client.iterdir())) for client in (tmp_path / "run" / "client_models").iterdir()]
        assert len(counts) == 6
        assert max(counts) <= 2
