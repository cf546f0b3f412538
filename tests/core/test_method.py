"""The contract's own few lines of code: random streams, sizes of records."""

from __future__ import annotations

import dataclasses
import re
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import ZERO, client, setup, train_round

import ipfl.core
from ipfl.client.memory import ClientMemory
from ipfl.core import EMPTY, Record, stream
from ipfl.core import method as method_module
from ipfl.core.replies import ReplySchema
from ipfl.core.vectors import mean
from ipfl.methods.shared.client_model_store import ClientModelStore

WORDS = st.text("abcdefgh_ü", min_size=1, max_size=8)
SEEDS = st.integers(0, 2**31)
PATHS = st.lists(st.one_of(st.integers(0, 2**32 - 1), WORDS), max_size=4).map(tuple)


def drawn(seed, path):
    return stream(seed, *path).integers(2**63, size=4).tolist()


class TestStream:
    @given(SEEDS, SEEDS, PATHS, PATHS)
    def test_seed_and_path_decide_the_numbers(self, seed, other_seed, path, other_path):
        assert drawn(seed, path) == drawn(seed, path)
        assert (drawn(seed, path) == drawn(seed, other_path)) == (path == other_path)
        assert (drawn(seed, path) == drawn(other_seed, path)) == (seed == other_seed)

    def test_words_and_numbers_and_their_order_matter(self):
        words = [("train",), ("taint",), ("train", 0), ("train", 0, 0), ("train", 1, 0), ("train", 0, 1)]
        paths = [(), (0,), (0, 0), *words]
        assert len({tuple(drawn(0, path)) for path in paths}) == len(paths)

    def test_negative_ids_have_streams_too(self):
        assert drawn(0, ("x", -1)) != drawn(0, ("x", -2))


class TestRecord:
    def test_bytes_on_the_wire(self):
        # 3 + 2 floats of 4 bytes are 20; {"n": 7} as JSON is 8 characters.
        record = Record({"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}, {"n": 7})
        assert record.nbytes == 20 + 8
        assert EMPTY.nbytes == 0


def test_the_toy_method_of_the_docstring():
    # (2, class 0) moves client 0 to 0.1·(1, −1), and client 1 never moves: their mean is 0.05·(1, −1).
    pattern = r"Toy example, a whole method:\n\n(.*?)\n\nState goes in"
    (code,) = re.findall(pattern, method_module.__doc__, re.DOTALL)
    names = {name: getattr(ipfl.core, name) for name in ipfl.core.__all__}
    names |= {"dataclass": dataclasses.dataclass, "ReplySchema": ReplySchema, "mean": mean}
    exec(textwrap.dedent(code), names)
    toy = names["Mean"]()
    clients = [client((2, 0)), client((0, 0), id=1)]
    played, _ = train_round(toy, toy.init(setup(2)), clients)
    np.testing.assert_allclose(played.state, [0.05, -0.05], rtol=1e-6)
    assert played.seats == [(0, -1, "random", True), (1, -1, "random", True)]
    assert toy.personalize(toy.offer(played.state, 5), Record(), clients[0]) is played.state
    assert toy.models(played.state) == {}


class TestSetup:
    def test_starts_by_number(self):
        start = np.ones(2, np.float32)
        others = setup(2, make_params=lambda number: start * number)
        assert others.start(0) is ZERO
        assert others.start(3).tolist() == [3, 3]

    def test_what_a_setup_may_lack(self, tmp_path):
        with pytest.raises(ValueError, match="no other initial parameters"):
            setup(2).start(1)
        with pytest.raises(ValueError, match="no store for models of single clients"):
            setup(2).client_model_store()
        store = ClientModelStore(ClientMemory(tmp_path))
        assert setup(2, make_client_models=lambda: store).client_model_store() is store
