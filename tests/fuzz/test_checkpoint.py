"""Checkpoints and other records: safetensors files with hostile heads, and hostile trees in sound files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.fuzz.inputs import clean, edited, feed, hostile, refused

from ipfl.config.run_config import RunConfig
from ipfl.core import Record, Setup, TaskFacts
from ipfl.keep.checkpoint import Checkpoints, pack_state, unpack_state
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus
from ipfl.methods.ipfl_plus.state import MarketState
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.system.files import read_record, write_record

SETUP = Setup(np.arange(4, dtype=np.float32), (0, 2, 5), 2, 0, TaskFacts(2), RunConfig(rounds=3))
STATES = {"fedavg": FedAvg().init(SETUP), "ipfl-plus": IPFLPlus().init(SETUP)}
"""A fresh state of a method with one model, and of one with a market."""


def file_of(state: Any, folder: Path) -> bytes:
    write_record(folder / "valid.safetensors", pack_state(state))
    return (folder / "valid.safetensors").read_bytes()


def sound(state: Any, like: Any) -> None:
    """A state that was let through is one that the method can go on with."""
    if state is not None:
        assert type(state) is type(like)
        if isinstance(state, MarketState):
            assert state.accounts.balances.sum() == state.accounts.issued


def reads(folder: Path, name: str) -> Any:
    """A check that writes its input as a checkpoint and reads it."""

    def check(content: bytes) -> None:
        (folder / "round-1.safetensors").write_bytes(content)
        sound(clean(lambda: Checkpoints(folder).read("round-1.safetensors", STATES[name])), STATES[name])

    return check


def test_random_bytes(tmp_path: Path) -> None:
    sized = st.binary(max_size=60).map(lambda head: len(head).to_bytes(8, "little") + head)
    feed(100, st.binary(max_size=60) | sized, reads(tmp_path, "fedavg"))


WORDS = [
    *(b'"dtype":"BF16"', b'"F8_E4M3"', b'"shape":[', b"[99999999999]", b'"data_offsets":[0,'),
    *(b'\\"array\\"', b"__metadata__"),
]  # fmt: skip


@pytest.mark.slow
def test_edited_files(tmp_path: Path) -> None:
    files = [
        st.tuples(st.just(name), edited([file_of(state, tmp_path)], WORDS)) for name, state in STATES.items()
    ]
    feed(250, st.one_of(files), lambda drawn: reads(tmp_path, drawn[0])(drawn[1]))


def packed(head: Any, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.slow
def test_heads(tmp_path: Path) -> None:
    """What a file says of its tensors: kinds, shapes and places, also such as claim a terabyte."""
    whole = file_of(STATES["fedavg"], tmp_path)
    size = int.from_bytes(whole[:8], "little")
    head, body = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    words = [
        *("F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "I64", "U8", "BOOL", "C64", "F4"),
        *([2**40], [0, 2**62], [4, 1], [[4]], [0, 2**63], [16, 0], [0, 16]),
        *({"facts": text} for text in ("[" * 5000, "9" * 5000, "[]", "{}", '{"state": NaN}', "\ud800")),
    ]  # fmt: skip
    feed(
        150,
        hostile(head, words).map(lambda given: packed(given, body)),
        reads(tmp_path, "fedavg"),
    )


@pytest.mark.slow
def test_trees() -> None:
    """The tree of a state: other classes, missing arrays, wrong kinds, huge numbers."""
    words = [
        *({"array": name} for name in ("0", "1", "99", ["0"])),
        *({"dict": pairs} for pairs in ([[1, 2]], [1], [[[], 1]])),
        *({"tuple": []}, {"list": [1]}, {"list": 5}, {"set": []}, {"fields": {}}),
        *({"class": "MarketState"}, {"class": "Bank", "fields": {}}, {"class": ["a"], "fields": {}}),
        {"class": "GlobalModel", "fields": {"params": 1, "per_round": 1}},
        {"class": "Popen", "fields": {"args": "true"}},
    ]  # fmt: skip

    def check(drawn: tuple[str, Any]) -> None:
        like = STATES[drawn[0]]
        record = Record(pack_state(like).params, {"state": drawn[1]})
        sound(clean(lambda: unpack_state(record, like)), like)

    trees = [
        st.tuples(st.just(name), hostile(pack_state(state).facts["state"], words))
        for name, state in STATES.items()
    ]
    feed(300, st.one_of(trees), check)


class TestFound:
    """What fuzzing found, each by itself."""

    def test_files_that_hold_no_record(self, tmp_path: Path) -> None:
        """Facts that are none, a kind of number that numpy lacks, and heads that claim a terabyte."""
        facts = ("[" * 100_000, "9" * 5000, "[]", "null", '"text"')
        brain = {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
        terabyte = {"w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
        for content in (
            *(packed({"__metadata__": {"facts": text}}, b"") for text in facts),
            packed(brain, b"\0" * 4),
            packed(terabyte, b"\0" * 16),
            (2**62).to_bytes(8, "little") + b"{}",
        ):
            (tmp_path / "r").write_bytes(content)
            refused(lambda: read_record(tmp_path / "r"), "cannot be read")

    def unfit(self, tree: Any, says: str = "") -> None:
        like = STATES["ipfl-plus"]
        record = Record(pack_state(like).params, {"state": tree})
        refused(lambda: unpack_state(record, like), f"does not fit the method.*{says}")

    def test_no_state_at_all(self) -> None:
        deep: Any = 0
        for _ in range(100_000):
            deep = {"list": [deep]}
        for tree in (5, None, "x", {"list": []}, {"dict": []}, {"array": "0"}, deep):
            self.unfit(tree)

    @pytest.mark.parametrize(
        "record, field, value",
        [
            ("run", "ids", None),
            ("run", "seed", "0"),
            ("clusters", "models", 3),
            ("clusters", "directions", 1),
            ("access", "is_paying", {"array": "0"}),
            ("access", "held_means", 1),
        ],
    )
    def test_a_field_of_another_kind(self, record: str, field: str, value: Any) -> None:
        tree = json.loads(json.dumps(pack_state(STATES["ipfl-plus"]).facts["state"]))
        tree["fields"][record]["fields"][field] = value
        self.unfit(tree, field)
