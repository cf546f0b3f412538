"""Memory on a node never outlives an attempt that was given up; server and node cache arrays by one rule."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipfl.client.memory import ClientMemory
from ipfl.core import EMPTY, Record
from ipfl.engines.flower.messages import array_digest
from ipfl.engines.flower.node_memory import (
    ArrayCache,
    Attempts,
    CacheIndex,
    DataDescription,
    NodeMemory,
    StaleAttemptError,
)
from ipfl.errors import InputError

DATA = DataDescription((0, 1), (8, 8, 1), 10)
CLIENT = 7


def fact(number):
    return Record({}, {"round": number})


def played(memory: NodeMemory, round: int, first_rounds: list[int]) -> None:
    memory.join_attempt(CLIENT, first_rounds)
    memory.save(CLIENT, fact(round), round)


def remembered(folder, first_rounds):
    memory = NodeMemory(folder)  # a restarted node
    memory.join_attempt(CLIENT, first_rounds)
    return memory.load(CLIENT).facts.get("round")


def test_a_resumed_run_does_not_see_rounds_that_did_not_commit(tmp_path):
    memory = NodeMemory(tmp_path)
    for round in (1, 2, 3):
        played(memory, round, [0])
    assert remembered(tmp_path, [0, 3]) == 2  # rounds up to 2 were committed
    assert remembered(tmp_path, [0, 3]) == 2  # hearing of it twice changes nothing


def test_a_node_that_missed_an_attempt(tmp_path):
    """Round 6 was played, not committed, and played again without this node; then came another resume.

    The newest attempt begins at 8, but what the node keeps of round 6 is of an attempt given up.
    """
    memory = NodeMemory(tmp_path)
    for round in (5, 6):
        played(memory, round, [0])
    assert remembered(tmp_path, [0, 6, 8]) == 5


def test_messages_of_an_attempt_given_up_are_refused(tmp_path):
    late = NodeMemory(tmp_path)
    late.join_attempt(CLIENT, [0])
    assert NodeMemory(tmp_path).load(CLIENT) == EMPTY
    NodeMemory(tmp_path).join_attempt(CLIENT, [0, 2])
    with pytest.raises(StaleAttemptError):
        NodeMemory(tmp_path).join_attempt(CLIENT, [0])
    with pytest.raises(StaleAttemptError, match="while the client worked"):
        late.save(CLIENT, fact(2), 2)
    assert remembered(tmp_path, [0, 2]) is None


def test_the_files_are_those_of_every_engine(tmp_path):
    """Whatever engine goes on with a run, it finds the same memory."""
    played(NodeMemory(tmp_path), 4, [0])
    assert ClientMemory(tmp_path).load(CLIENT) == fact(4)
    NodeMemory(tmp_path).join_attempt(CLIENT, [0, 5])
    ClientMemory(tmp_path).forget_after(3)
    assert ClientMemory(tmp_path).load(CLIENT) == EMPTY


def test_the_servers_list_survives_it(tmp_path):
    path = tmp_path / "run" / "flower.json"
    begun = Attempts.open(path, DATA)
    begun.begin_attempt(3)
    again = Attempts.open(path, DataDescription((), (), 0))
    assert (again.run_id, again.first_rounds, again.data) == (begun.run_id, [0, 3], DATA)
    assert Attempts.open(None, DATA).run_id != begun.run_id


@pytest.mark.parametrize("broken", ["", "{}", "[1]", json.dumps({"run": "x", "firsts": 3})])
def test_a_list_that_cannot_be_read(tmp_path, broken):
    path = tmp_path / "flower.json"
    path.write_text(broken)
    with pytest.raises(InputError, match=r"flower\.json"):
        Attempts.open(path, DATA)
    with pytest.raises(InputError, match="no run on Flower was begun here"):
        Attempts.read(tmp_path / "elsewhere" / "flower.json")


def array_of(number):
    return np.full(3, number, np.float32)


def arrays(*numbers):
    return {array_digest(array_of(number)): array_of(number) for number in numbers}


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=12))
def test_server_and_node_agree(tmp_path_factory, asks):
    """What the server believes that the node holds is what the node finds."""
    cache, index = ArrayCache(tmp_path_factory.mktemp("node")), CacheIndex()
    for ask in asks:
        cache.add_ask(arrays(*ask))
        index.add_ask(arrays(*ask))
        for key, array in arrays(*range(6)).items():
            found = ArrayCache(cache.folder).load([key])  # another process, with nothing in memory
            assert (key in index) == (key in found)
            assert key not in found or found[key].tobytes() == array.tobytes()


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "harm", [damage, lambda path: path.write_bytes(b"no safetensors"), lambda path: path.unlink()]
)
def test_a_broken_file_is_an_array_that_is_not_there(tmp_path, harm):
    cache = ArrayCache(tmp_path)
    cache.add_ask(arrays(1, 2))
    (key,) = arrays(1)
    harm(tmp_path / key)
    assert set(cache.load(arrays(1, 2))) == set(arrays(2))


def test_a_broken_index_is_an_empty_one(tmp_path):
    cache = ArrayCache(tmp_path)
    cache.add_ask(arrays(1))
    (tmp_path / "index.json").write_text("{")
    cache.add_ask(arrays(2))
    assert set(cache.load(arrays(1, 2))) == set(arrays(2))
