"""Records on disk: what is written is what safetensors reads, whatever the arrays look like in memory."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from ipfl.core import Record
from ipfl.system.files import DTYPE_NAMES, read_record, write_record

ODD_NAME = 'é"\n'


def arrays() -> dict[str, np.ndarray]:
    """One array of every type, and those that lie in memory in another way than plain ones."""
    rng = np.random.default_rng(0)
    found = {kind: rng.integers(0, 2, size=(3, 2)).astype(kind) for kind in DTYPE_NAMES}
    grid = rng.normal(size=(4, 6)).astype(np.float32)
    return found | {"strided": grid[:, ::2], "turned": grid.T, "empty": grid[:0], ODD_NAME: grid[0]}


def test_as_safetensors_writes_them(tmp_path):
    facts = {"text": "é", "list": [1, None, 0.1]}
    write_record(tmp_path / "record.safetensors", Record(arrays(), facts))
    reference = load(save({name: np.ascontiguousarray(one) for name, one in arrays().items()}))
    for found in (
        load((tmp_path / "record.safetensors").read_bytes()),
        read_record(tmp_path / "record.safetensors").params,
    ):
        assert {*found} == {*reference}
        for name, expected in reference.items():
            assert found[name].dtype == expected.dtype
            np.testing.assert_array_equal(found[name], expected)
    with safe_open(tmp_path / "record.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["facts"]) == facts


def test_vectors_of_one_type_have_the_same_bytes(tmp_path):
    vectors = {name: np.arange(n, dtype=np.float32) for n, name in enumerate(["b", "a", "10", "9"])}
    write_record(tmp_path / "record.safetensors", Record(vectors, {"n": 3}))
    assert (tmp_path / "record.safetensors").read_bytes() == save(vectors, {"facts": '{"n": 3}'})


def test_a_type_that_no_file_holds(tmp_path):
    with pytest.raises(KeyError):
        write_record(tmp_path / "record.safetensors", Record({"names": np.array(["a"])}))
    assert not list(tmp_path.iterdir())
