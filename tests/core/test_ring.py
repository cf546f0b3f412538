"""Numbers as ring elements: exact sums, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.core import Ask, Record
from ipfl.core.replies import MAX_COMPONENT, Count, NonNegative, ReplySchema, is_vector, list_of
from ipfl.core.ring import OutOfRangeError, SumLayout, fraction_bits, from_vector, to_vector

RING = arrays(np.uint64, st.integers(0, 20), elements=st.integers(0, 2**60 - 1))


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@given(RING)
def test_elements_travel_as_valid_vectors(elements):
    sent = to_vector(elements)
    assert is_vector(sent, 3 * len(elements))
    assert np.array_equal(from_vector(sent), elements)


def test_limbs_by_hand():
    # 2^40 + 3·2^20 + 5 has the limbs 5, 3 and 1, each less 2^19 = 524288.
    assert to_vector(np.array([2**40 + 3 * 2**20 + 5], np.uint64)).tolist() == [-524283, -524285, -524287]
    assert MAX_COMPONENT > 524288


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=9))
def test_whatever_passes_the_boundary_is_an_element(numbers):
    whole = np.array(numbers[: 3 * (len(numbers) // 3)], np.float32)
    assert (from_vector(whole) < 2**60).all()


def test_bits_leave_room_for_the_sum():
    # 60 bits, of which one is the sign: 59 = 10 (value) + 20 (weight) + log2(clients) + bits.
    assert [fraction_bits(n) for n in (1, 2, 3, 4, 5, 64, 65)] == [29, 28, 27, 27, 26, 23, 22]


LAYOUT = SumLayout({"m": 2}, {"n": 0, "of": 2}, bits=4)


def test_a_reply_by_hand():
    reply = Record({"m": vector(1.5, -0.25)}, {"n": 3, "of": [1.0, 2.5]})
    # With 4 bits behind the point 1 is 16: 3·24 and 3·(−4), the weight 3 itself, then 48, 16 and 40.
    packed = LAYOUT.pack(reply, {"m": 3})
    assert packed.tolist() == [72, 2**60 - 12, 3, 48, 16, 40]
    total = LAYOUT.unpack(packed)
    assert total.vectors["m"].tolist() == [4.5, -0.75]
    assert total.mean("m").tolist() == [1.5, -0.25]
    assert (total.weights, total.facts) == ({"m": 3}, {"n": 3.0, "of": [1.0, 2.5]})
    assert LAYOUT.size == 6


def test_what_a_client_does_not_hold_is_zero():
    assert not LAYOUT.pack(Record(), {}).any()
    assert LAYOUT.unpack(np.zeros(6, np.uint64)).mean("m") is None


@given(st.lists(st.tuples(st.floats(-1000, 1000, width=32), st.integers(0, 2**20 - 1)), max_size=16))
def test_the_sum_of_whole_numbers_is_exact(replies):
    layout = SumLayout({"m": 1}, {}, fraction_bits(16))
    total = np.zeros(2, np.uint64)
    for value, weight in replies:
        total = total + layout.pack(Record({"m": vector(value)}), {"m": weight})
    # Python's whole numbers have no limit.
    expected = sum(weight * round(float(np.float32(value)) * 2**layout.bits) for value, weight in replies)
    found = layout.unpack(total)
    assert found.vectors["m"][0] == expected / 2**layout.bits
    assert found.weights["m"] == sum(weight for _, weight in replies)


@pytest.mark.parametrize(
    "params, facts, weight",
    [
        (vector(1024, 0), {}, 1),
        (vector(np.nan, 0), {}, 1),
        (vector(np.inf, 0), {}, 1),
        (vector(1), {}, 1),
        (vector(1, 1), {}, 2**20),
        (vector(1, 1), {}, -1),
        (vector(1, 1), {"n": 2**20}, 1),
        (vector(1, 1), {"of": [1.0]}, 1),
    ],
)
def test_what_does_not_fit(params, facts, weight):
    with pytest.raises(OutOfRangeError):
        LAYOUT.pack(Record({"m": params}, facts), {"m": weight})


def test_the_layout_is_that_of_all_replies_together():
    schema = ReplySchema(
        lambda sent: dict.fromkeys(sent.params, list_of(NonNegative, 2)) | {"n": Count},
        lambda sent, facts: {name: len(model) for name, model in sent.params.items()},
    )
    to = {1: Record({"a": vector(1, 2)}), 2: Record({"b": vector(1), "a": vector(1, 2)})}
    layout = SumLayout.of(Ask("do", to, schema), {"a": [1, 2]})
    # b has too few holders: neither its vector nor the fact of that name is summed.
    assert (layout.vectors, layout.facts, layout.bits) == ({"a": 2}, {"a": 2, "n": 0}, 28)
