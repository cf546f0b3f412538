"""Records as Flower messages, and back: nothing is lost, and whatever does not fit is refused."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app.metadata import validate_message_type
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ipfl.core import Record
from ipfl.engines.flower.messages import (
    RAW_BYTES,
    Encoder,
    MalformedError,
    action_of,
    decode,
    encode_text,
    message_type,
    pack,
    payload_bytes,
    unpack,
)

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text()
facts = st.dictionaries(st.text(), scalars | st.lists(scalars))
vectors = arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))
records = st.builds(Record, st.dictionaries(st.text(), vectors, max_size=3), facts)


def travelled(record: Record) -> Record:
    names, found = Encoder().encode(record)
    head, arrays = unpack(pack({"params": names, "facts": dict(record.facts)}, found))
    return decode(head["params"], arrays, head["facts"])


def text(record: Record) -> str:
    """The facts as text: NaN is not equal to itself, but written alike."""
    return json.dumps(dict(record.facts))


@given(records)
def test_what_arrives_is_what_was_sent(record):
    arrived = travelled(record)
    assert text(arrived) == text(record)
    assert list(arrived.params) == list(record.params)
    for name, vector in record.params.items():
        assert arrived.params[name].tobytes() == vector.tobytes()
        assert arrived.params[name].dtype == np.float32


def test_arrived_vectors_cannot_be_written_to():
    arrived = travelled(Record({"w": np.ones(3, np.float32)}))
    with pytest.raises(ValueError, match="read-only"):
        arrived.params["w"][0] = 2


def test_bytes_by_hand():
    """Two names of one vector of 10 floats: 40 bytes once. The head's text is counted as it stands."""
    vector = np.arange(10, dtype=np.float32)
    names, found = Encoder().encode(Record({"a": vector, "b": vector}))
    head = {"params": names, "facts": {"é": 1}}
    assert payload_bytes(pack(head, found)) == 40 + len(json.dumps(head))


def test_equal_vectors_have_one_digest_whatever_their_memory():
    every_other = np.arange(6, dtype=np.float32)[::2]
    names, found = Encoder().encode(Record({"a": every_other, "b": every_other.copy()}))
    assert names["a"] == names["b"]
    assert len(found) == 1


def test_other_types_are_not_sent():
    with pytest.raises(ValueError, match="float64"):
        Encoder().encode(Record({"w": np.ones(3)}))


@pytest.mark.parametrize(
    ("action", "kind"),
    [("train", "train"), ("evaluate", "evaluate"), ("preference", "query.preference")],
)
def test_types_of_messages(action, kind):
    assert message_type(action) == kind
    assert action_of(kind) == action
    assert validate_message_type(kind)


def content(text="{}", found=None):
    return RecordDict({"head": ConfigRecord({"json": text}), "arrays": ArrayRecord(found or {})})


def array(data=b"\0" * 8, shape=(2,), dtype="float32", form=RAW_BYTES):
    return Array(dtype=dtype, shape=shape, stype=form, data=data)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (RecordDict(), "no header"),
        (RecordDict({"head": ConfigRecord({"json": "{}"})}), "no header or no arrays"),
        (RecordDict({"head": ArrayRecord({}), "arrays": ArrayRecord({})}), "no header"),
        (content("{"), "not JSON"),
        (content("[]"), "not a JSON object"),
        (content('{"n": 9223372036854775808}'), "more than 64 bits"),
        (content('{"n": 1%s}' % ("0" * 5000)), "more than 64 bits"),
        (content(found={"x": array(shape=(3,))}), "8 bytes for an array of shape"),
        (content(found={"x": array(shape=(-2, -1))}), "8 bytes for an array of shape"),
        (content(found={"x": array(dtype="object")}), "type 'object'"),
        (content(found={"x": array(form="numpy.ndarray")}), "in form 'numpy.ndarray'"),
        (content(found={"x": array()}), "do not match its digest"),
    ],
)
def test_malformed_content_is_refused(broken, why):
    with pytest.raises(MalformedError, match=why):
        unpack(broken)


def test_a_name_without_its_vector_and_a_text_as_a_vector_are_refused():
    key, text = encode_text("hello")
    _, arrays = unpack(pack({}, {key: text}))
    for names in ({"w": "elsewhere"}, {"w": key}):
        with pytest.raises(MalformedError, match="no vector"):
            decode(names, arrays, {})
