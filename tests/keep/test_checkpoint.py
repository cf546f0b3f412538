"""States on disk: what goes in comes out, and where a folder is stays out of it."""

from __future__ import annotations

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
