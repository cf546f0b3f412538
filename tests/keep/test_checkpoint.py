"""States on disk: what goes in comes out, and where a folder is stays out of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ipfl.client.memory import ClientMemory
from ipfl.config.sections import AggregateConfig
from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.keep.checkpoint import Checkpoints, pack_state, unpack_state
from ipfl.methods.shared.client_model_store import ClientModelStore
from ipfl.system.files import read_record, write_record


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


@dataclass(frozen=True)
class Moving:
    """A model that moves, and the way from each of its last three places to the next."""

    model: Any
    ways: tuple[Any, ...] = field(default=(), metadata={"lasting": True})

    def moved(self) -> Moving:
        after = self.model + 1
        return Moving(after, (*self.ways, (self.model, after))[-2:])


class TestLastingArrays:
    FRESH = Moving(np.zeros(3, np.float32))

    def play(
        self, checkpoints: Checkpoints, state: Moving, rounds: range
    ) -> tuple[Moving, list[dict[str, str]]]:
        """The state after these rounds, and the files that each round's checkpoint consists of."""
        files = []
        for round in rounds:
            state = state.moved()
            written = checkpoints.write(round, state)
            checkpoints.keep_only(written.name)
            assert {path.name for path in checkpoints.folder.iterdir()} == {*written.files}
            files.append({**written.files})
        return state, files

    def test_they_are_written_once_and_stay_as_long_as_they_are_needed(self, tmp_path):
        state, files = self.play(Checkpoints(tmp_path), self.FRESH, range(4))
        # Round 0 writes two models, the others one each; from round 3 on the first two are not needed.
        assert [sorted(names) for names in files] == [
            ["round-0.safetensors", "vectors-0.safetensors"],
            ["round-1.safetensors", "vectors-0.safetensors", "vectors-1.safetensors"],
            ["round-2.safetensors", *(f"vectors-{n}.safetensors" for n in range(3))],
            ["round-3.safetensors", *(f"vectors-{n}.safetensors" for n in range(1, 4))],
        ]
        written = [len(read_record(tmp_path / f"vectors-{n}.safetensors").params) for n in range(1, 4)]
        assert written == [1, 1, 1]
        assert not read_record(tmp_path / "round-3.safetensors").params
        again = Checkpoints(tmp_path).read("round-3.safetensors", self.FRESH)
        assert [[one.tolist() for one in way] for way in again.ways] == [
            [[2] * 3, [3] * 3],
            [[3] * 3, [4] * 3],
        ]
        assert again.model is again.ways[-1][-1]
        assert again.ways[0][1] is again.ways[1][0]
        assert again.model.tolist() == state.model.tolist()

    @pytest.mark.parametrize("done", range(1, 6))
    def test_who_goes_on_writes_the_same_files(self, tmp_path, done):
        _, whole = self.play(Checkpoints(tmp_path / "whole"), self.FRESH, range(6))
        _, begun = self.play(Checkpoints(tmp_path / "parts"), self.FRESH, range(done))
        Checkpoints(tmp_path / "parts").write(done, self.FRESH.moved())  # of a process that died then
        later = Checkpoints(tmp_path / "parts")
        state = later.read(f"round-{done - 1}.safetensors", self.FRESH)
        later.keep_only(f"round-{done - 1}.safetensors")
        _, ended = self.play(later, state, range(done, 6))
        assert [*begun, *ended] == whole

    def test_the_last_checkpoint_stays_whole_until_the_next_is_kept(self, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        state, _ = self.play(checkpoints, self.FRESH, range(3))
        checkpoints.write(3, state.moved())
        assert Checkpoints(tmp_path).read("round-2.safetensors", self.FRESH).model.tolist() == [3] * 3

    def test_a_round_can_be_written_again(self, tmp_path):
        checkpoints = Checkpoints(tmp_path)
        state, _ = self.play(checkpoints, self.FRESH, range(3))
        last = state.moved()
        assert checkpoints.write(3, last) == checkpoints.write(3, last)

    @pytest.mark.parametrize(
        "elsewhere",
        [
            {"0": ["vectors-9.safetensors", "0"]},
            {"0": ["../vectors-0.safetensors", "0"]},
            {"0": ["vectors-0.safetensors", "7"]},
            {"0": "vectors-0.safetensors"},
            {"0": 3},
            [],
            7,
        ],
    )
    def test_what_is_not_there_is_refused(self, tmp_path, elsewhere):
        checkpoints = Checkpoints(tmp_path)
        checkpoints.write(0, self.FRESH.moved())
        record = read_record(tmp_path / "round-0.safetensors")
        facts = {**record.facts, "elsewhere": json.loads(json.dumps(elsewhere))}
        write_record(tmp_path / "round-0.safetensors", replace(record, facts=facts))
        with pytest.raises(InputError):
            checkpoints.read("round-0.safetensors", self.FRESH)
