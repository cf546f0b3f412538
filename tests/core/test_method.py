"""The contract's own few lines of code: random streams, sizes of records, ids of holdouts."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ipfl.core import EMPTY, Record, holdout_id, stream

WORDS = st.text("abcdefgh_ü", min_size=1, max_size=8)
PATHS = st.lists(st.one_of(st.integers(0, 2**32 - 1), WORDS), max_size=4).map(tuple)


def drawn(seed, path):
    return stream(seed, *path).integers(2**63, size=4).tolist()


class TestStream:
    @given(st.integers(0, 2**31), PATHS)
    def test_same_path_same_numbers(self, seed, path):
        assert drawn(seed, path) == drawn(seed, path)

    @given(st.integers(0, 2**31), PATHS, PATHS)
    def test_another_path_other_numbers(self, seed, one, other):
        assert (drawn(seed, one) == drawn(seed, other)) == (one == other)

    @given(st.integers(0, 2**31), st.integers(0, 2**31), PATHS)
    def test_another_seed_other_numbers(self, one, other, path):
        assert (drawn(one, path) == drawn(other, path)) == (one == other)

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

    @given(
        st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.booleans(), st.none(), st.text()))
    )
    def test_facts_are_counted_as_json(self, facts):
        assert Record({}, facts).nbytes == (len(json.dumps(facts)) if facts else 0)

    def test_nothing_weighs_nothing(self):
        assert EMPTY.nbytes == 0


def test_holdout_ids_never_meet_a_client_s():
    ids = [holdout_id(distribution) for distribution in range(5)]
    assert ids == [-1, -2, -3, -4, -5]
    # `ClientRunner` goes back the same way: distribution = −1 − id.
    assert [-1 - id for id in ids] == [0, 1, 2, 3, 4]
