"""What clients remember, on disk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.client.memory import ClientMemory
from ipfl.core import EMPTY, Record
from ipfl.errors import InputError

VECTORS = st.dictionaries(
    st.text("abc_0", min_size=1, max_size=5), arrays(np.float32, st.integers(0, 9)), max_size=3
)
SCALARS = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.booleans(), st.none())
FACTS = st.dictionaries(st.text(max_size=5), st.one_of(SCALARS, st.lists(SCALARS, max_size=3)), max_size=3)


@given(VECTORS, FACTS)
@settings(max_examples=50)
def test_round_trip_is_exact(tmp_path_factory, params, facts):
    memory = ClientMemory(tmp_path_factory.mktemp("memory"))
    memory.save(3, Record(params, facts), 0)
    loaded = memory.load(3)
    assert loaded.facts == facts
    assert {name: vector.tobytes() for name, vector in loaded.params.items()} == {
        name: vector.tobytes() for name, vector in params.items()
    }


def test_views_are_saved_as_they_look(tmp_path):
    """A method may remember a part of something larger, such as a view into a worker's mailbox."""
    memory = ClientMemory(tmp_path)
    view = np.arange(10, dtype=np.float32)[1::3]
    view.flags.writeable = False
    memory.save(0, Record({"own": view}), 0)
    assert memory.load(0).params["own"].tolist() == [1, 4, 7]


def test_each_client_has_its_own_and_the_last_one_counts(tmp_path):
    memory = ClientMemory(tmp_path / "made" / "when needed")
    assert memory.load(1) is EMPTY
    for client, value in [(1, "old"), (-1, "holdout"), (11, "eleven"), (1, "new")]:
        memory.save(client, Record({}, {"said": value}), 0)
    assert [memory.load(client).facts for client in (1, 11, -1)] == [
        {"said": "new"}, {"said": "eleven"}, {"said": "holdout"},
    ]  # fmt: skip
    assert memory.load(2) is EMPTY
    assert len(list(memory.folder.iterdir())) == 3, "no drafts are left"


def test_a_file_cut_short_is_the_user_s_to_mend(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.save(5, Record({"own": np.ones(100, np.float32)}), 0)
    file = tmp_path / "5" / "0.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InputError, match=r"5/0\.safetensors"):
        memory.load(5)


def said(memory: ClientMemory, client: int = 1):
    return memory.load(client).facts.get("said")


def test_what_uncommitted_rounds_left_is_taken_back(tmp_path):
    memory = ClientMemory(tmp_path)
    for round in (2, 3, 5):
        memory.save(1, Record({}, {"said": round}), round)
    memory.save(2, Record({}, {"said": "new"}), 5)
    memory.forget_after(4)
    assert said(memory) == 3
    assert memory.load(2) is EMPTY
    memory.forget_after(-1)
    assert memory.load(1) is EMPTY


def test_a_folder_of_nobody_is_left_alone(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.save(1, Record({}, {"said": 0}), 0)
    (tmp_path / "notes").mkdir()
    memory.forget_after(-1)
    assert memory.load(1) is EMPTY
    assert (tmp_path / "notes").exists()


def test_only_what_a_resumed_run_could_need_is_kept(tmp_path):
    # Rounds 0 to 3 left files; once round 2 is committed, 2 is needed (round 3 may be played again), and
    # 0 and 1 are not.
    memory = ClientMemory(tmp_path)
    for round, committed in [(0, -1), (1, 0), (2, 0), (3, 2)]:
        memory.committed = committed
        memory.save(1, Record({}, {"said": round}), round)
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["2.safetensors", "3.safetensors"]
    memory.forget_after(2)
    assert said(memory) == 2
