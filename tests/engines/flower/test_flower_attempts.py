"""Memory on a node never outlives an attempt that was given up."""

import json

import pytest

from ipfl.client.memory import ClientMemory
from ipfl.core import EMPTY, Record
from ipfl.engines.flower.attempts import Attempts, NodeMemory, StaleError
from ipfl.engines.flower.remote import View
from ipfl.errors import InputError

VIEW = View((0, 1), (8, 8, 1), 10)
CLIENT = 7


def fact(number):
    return Record({}, {"round": number})


def played(memory: NodeMemory, round: int, firsts: list[int]) -> None:
    memory.enter(CLIENT, firsts)
    memory.save(CLIENT, fact(round), round)


def remembered(folder, firsts):
    memory = NodeMemory(folder)  # a restarted node
    memory.enter(CLIENT, firsts)
    return memory.load(CLIENT).facts.get("round")


def test_a_node_in_the_first_attempt_remembers(tmp_path):
    played(NodeMemory(tmp_path), 3, [0])
    assert remembered(tmp_path, [0]) == 3


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


def test_nothing_committed_at_all(tmp_path):
    played(NodeMemory(tmp_path), 0, [0])
    assert remembered(tmp_path, [0, 0]) is None


def test_messages_of_an_attempt_given_up_are_refused(tmp_path):
    late = NodeMemory(tmp_path)
    late.enter(CLIENT, [0])
    assert NodeMemory(tmp_path).load(CLIENT) == EMPTY
    NodeMemory(tmp_path).enter(CLIENT, [0, 2])
    with pytest.raises(StaleError):
        NodeMemory(tmp_path).enter(CLIENT, [0])
    with pytest.raises(StaleError, match="while the client worked"):
        late.save(CLIENT, fact(2), 2)
    assert remembered(tmp_path, [0, 2]) is None


def test_the_files_are_those_of_every_engine(tmp_path):
    """Whatever engine goes on with a run, it finds the same memory."""
    played(NodeMemory(tmp_path), 4, [0])
    assert ClientMemory(tmp_path).load(CLIENT) == fact(4)
    NodeMemory(tmp_path).enter(CLIENT, [0, 5])
    ClientMemory(tmp_path).forget_after(3)
    assert ClientMemory(tmp_path).load(CLIENT) == EMPTY


def test_the_servers_list_survives_it(tmp_path):
    path = tmp_path / "run" / "flower.json"
    begun = Attempts.open(path, VIEW)
    begun.again(3)
    again = Attempts.open(path, View((), (), 0))
    assert (again.run, again.firsts, again.view) == (begun.run, [0, 3], VIEW)
    assert Attempts.open(None, VIEW).run != begun.run


@pytest.mark.parametrize("broken", ["", "{}", "[1]", json.dumps({"run": "x", "firsts": 3})])
def test_a_list_that_cannot_be_read(tmp_path, broken):
    path = tmp_path / "flower.json"
    path.write_text(broken)
    with pytest.raises(InputError, match=r"flower\.json"):
        Attempts.open(path, VIEW)


def test_a_run_that_was_never_on_flower(tmp_path):
    with pytest.raises(InputError, match="no run on Flower was begun here"):
        Attempts.read(tmp_path / "flower.json")
