"""Records on disk: what is written is what is read, whatever the arrays look like in memory."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save

from ipfl.core import Record
from ipfl.system.files import read_record, write_record

KINDS = ["bool", "float16", "float32", "float64", "int8", "int64", "uint8", "uint64"]


def test_all_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {kind: rng.integers(0, 2, size=(3, 2)).astype(kind) for kind in KINDS}
    grid = rng.normal(size=(4, 6)).astype(np.float32)
    arrays |= {"strided": grid[:, ::2], "turned": grid.T, "empty": grid[:0], 'é"\n': grid[0]}
    facts = {"text": "é", "list": [1, None, 0.1]}
    write_record(tmp_path / "record.safetensors", Record(arrays, facts))
    found = read_record(tmp_path / "record.safetensors")
    assert found.facts == facts
    assert {*found.params} == {*arrays}
    for name, expected in arrays.items():
        assert found.params[name].dtype == expected.dtype
        np.testing.assert_array_equal(found.params[name], expected)


def test_the_bytes_are_those_of_safetensors(tmp_path):
    vectors = {name: np.arange(n, dtype=np.float32) for n, name in enumerate(["b", "a", "10", "9"])}
    write_record(tmp_path / "record.safetensors", Record(vectors, {"n": 3}))
    assert (tmp_path / "record.safetensors").read_bytes() == save(vectors, {"facts": '{"n": 3}'})


def test_a_type_that_no_file_holds(tmp_path):
    with pytest.raises(Exception, match="str"):
        write_record(tmp_path / "record.safetensors", Record({"names": np.array(["a"])}))
    assert not list(tmp_path.iterdir())
