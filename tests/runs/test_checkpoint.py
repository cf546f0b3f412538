"""States on disk: what goes in comes out, and where a folder is stays out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ipfl.client.memory import ClientMemory
from ipfl.core import Record
from ipfl.core.sections import AggregateConfig
from ipfl.errors import InputError
from ipfl.methods.client_model_store import ClientModelStore
from ipfl.runs.checkpoint import Checkpoints, pack_state, unpack_state


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
    name = checkpoints.write(4, before).name
    assert b"old" not in (tmp_path / "checkpoint" / name).read_bytes()
    after = checkpoints.read(name, state(tmp_path / "moved"))
    assert after.client_models.memory.folder == tmp_path / "moved"
    assert after.client_models.rounds == {3: 1}
    assert after.rule == before.rule
    assert str(after.known) == str(before.known)  # −0.0 too
    for one, other in zip(after.models, models, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


def test_a_file_cannot_name_a_class_of_its_own(tmp_path):
    packed = pack_state(state(tmp_path))
    packed.facts["state"]["class"] = "Popen"
    with pytest.raises(InputError, match="does not fit the method"):
        unpack_state(packed, state(tmp_path))


def test_a_file_cannot_say_where_the_folder_is(tmp_path):
    packed = pack_state(state(tmp_path))
    packed.facts["state"]["fields"]["client_models"]["fields"]["memory"] = "/etc"
    with pytest.raises(InputError, match="does not fit the method"):
        unpack_state(packed, state(tmp_path))


def test_settings_are_checked_again(tmp_path):
    packed = pack_state(state(tmp_path))
    packed.facts["state"]["fields"]["rule"]["fields"]["attacker_share"] = 7
    with pytest.raises(InputError, match="does not fit the method"):
        unpack_state(packed, state(tmp_path))


def test_what_a_state_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="cannot hold set"):
        pack_state({"ids": {1, 2}})
    with pytest.raises(InputError):
        unpack_state(Record(), state(tmp_path))
