"""States on disk: what goes in comes out, and where a folder is stays out of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ipfl.client.memory import ClientMemory
from ipfl.config.sections import AggregateConfig
from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.keep.checkpoint import Checkpoints, pack_state, unpack_state
from ipfl.methods.shared.client_model_store import ClientModelStore


@dataclass(frozen=True)
class State:
    models: tuple[Any, ...]
    rule: AggregateConfig
    client_models: ClientModelStore
    known: dict[int, list[float]] = field(default_factory=dict)


def state(place, *, models=(), rule=None, rounds=None, known=None) -> State:
    return State(
        models, rule or AggregateConfig(), ClientModelStore(ClientMemory(place), rounds or {}), known or {}
    )


def test_all_comes_back_and_folders_stay_where_they_are(tmp_path):
    models = (np.arange(3, dtype=np.float32), np.array([True, False]))
    before = state(
        tmp_path / "old",
        models=models,
        rule=AggregateConfig(rule="multi_krum", clip="median"),
        rounds={3: 1},
        known={7: [0.1, -0.0]},
    )
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    name = checkpoints.write(4, before)
    assert b"old" not in (tmp_path / "checkpoint" / name).read_bytes()
    after = checkpoints.read(name, state(tmp_path / "moved"))
    assert after.client_models.memory.folder == tmp_path / "moved"
    assert after.client_models.rounds == {3: 1}
    assert after.rule == before.rule
    assert str(after.known) == str(before.known)  # −0.0 too
    for one, other in zip(after.models, models, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ((), "class", "Popen"),
        (("fields", "client_models", "fields"), "memory", "/etc"),
        (("fields", "rule", "fields"), "attacker_share", 7),  # settings are checked again
    ],
)
def test_a_file_names_no_class_no_folder_and_no_setting_of_its_own(tmp_path, where, key, value):
    packed = pack_state(state(tmp_path))
    place = packed.facts["state"]
    for name in where:
        place = place[name]
    place[key] = value
    with pytest.raises(InputError, match="does not fit the method"):
        unpack_state(packed, state(tmp_path))


def test_what_a_state_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="cannot hold set"):
        pack_state({"ids": {1, 2}})
    with pytest.raises(InputError):
        unpack_state(Record(), state(tmp_path))


@pytest.mark.parametrize("name", ["../round-0.safetensors", "round-9.safetensors"])
def test_what_is_no_checkpoint_of_the_folder_is_refused(tmp_path, name):
    Checkpoints(tmp_path).write(0, state(tmp_path))
    with pytest.raises(InputError):
        Checkpoints(tmp_path / "checkpoint").read(name, state(tmp_path))


def read_only(*values: float) -> Any:
    array = np.array(values, np.float32)
    array.flags.writeable = False
    return array


def test_what_cannot_change_is_written_once(tmp_path):
    """Rounds 0 to 2 keep the last two models; a process that reads round 1 goes on to the same bytes."""
    first, second, third = read_only(1, 2), read_only(3, 4), read_only(5, 6)
    going_on, folder = Checkpoints(tmp_path / "a"), tmp_path / "a"
    names = []
    for round, models in enumerate([(first,), (first, second), (second, third)]):
        names.append(going_on.write(round, state(tmp_path, models=(*models, np.zeros(1)))))
        going_on.remove_others()
        files = {file.name for file in folder.iterdir()}
        # Round 1 refers to the file of round 0; in round 2 nobody needs that any more.
        wanted = {0: {0}, 1: {0, 1}, 2: {1, 2}}[round]
        assert files == {f"round-{round}.safetensors", *(f"vectors-{one}.safetensors" for one in wanted)}
        assert {*going_on.digests} == files
        if round == 1:
            shutil.copytree(folder, tmp_path / "b")
    resumed = Checkpoints(tmp_path / "b")
    found = resumed.read(names[1], state(tmp_path))
    assert [one.tolist() for one in found.models] == [[1, 2], [3, 4], [0]]
    assert resumed.write(2, state(tmp_path, models=(found.models[1], third, np.zeros(1)))) == names[2]
    resumed.remove_others()
    assert resumed.digests == going_on.digests


def test_a_file_that_a_checkpoint_refers_to_is_gone(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a")
    name = checkpoints.write(0, state(tmp_path, models=(read_only(1),)))
    (tmp_path / "a/vectors-0.safetensors").unlink()
    with pytest.raises(InputError, match="vectors-0"):
        checkpoints.read(name, state(tmp_path))
