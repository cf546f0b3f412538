"""What a client sent: form and size before content, and one kind of error for whatever is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.core import Record
from ipfl.core.replies import (
    Count,
    InvalidReplyError,
    NonNegative,
    ReplyLimits,
    ReplySchema,
    UnreadableReply,
    as_invalid,
    check_content,
    check_form,
    list_of,
    printable,
)

MODEL = np.zeros(3, np.float32)
SCHEMA = ReplySchema({"n": Count, "hits": list_of(NonNegative, 2)}, {"m": 3})
LIMITS = SCHEMA.limits(Record())


def nested(depth: int) -> list:
    inner: list = []
    for _ in range(depth):
        inner = [inner]
    return inner


class TestLimits:
    def test_of_a_schema(self):
        """3 numbers of 4 bytes; two names with what JSON adds; 32 bytes for each of 1 + 2 numbers."""
        # 2 braces; "n": 1 + 6 + 32; "hits": 4 + 6 + (2 brackets + 2·32); 80 for what is said of privacy.
        assert ReplyLimits(2 + 39 + 76 + 80, 1, 12) == LIMITS

    def test_where_vectors_depend_on_the_reply_no_more_than_was_sent(self):
        schema = ReplySchema(vectors=lambda sent, facts: {"a": 3})
        sent = Record({"a": MODEL, "b": MODEL})
        assert (schema.limits(sent).vectors, schema.limits(sent).vector_bytes) == (2, 24)
        wide = ReplySchema(vectors=lambda sent, facts: {"a": 3}, max_vector_bytes=100)
        assert wide.limits(Record()).vector_bytes == 100

    def test_every_valid_reply_fits(self):
        largest = {"n": 10**9, "hits": [0.1234567890123456789e-300, 2.0**53]}
        check_form(Record({"m": MODEL}, largest), LIMITS)
        check_content(SCHEMA, Record(), Record({"m": MODEL}, {"n": 3, "hits": [1.5, 2.0]}))


class TestForm:
    @pytest.mark.parametrize(
        "reply",
        [
            5,
            None,
            {"n": 3},
            Record(None, {}),
            Record({}, [1]),
            Record({"m": MODEL, "x": MODEL}),
            Record({"m": np.zeros(4, np.float32)}),
            Record({"m": np.zeros((0, 2**40), np.float32)}),
            Record({"m": MODEL.astype(np.float64)}),
            Record({"m": MODEL.tolist()}),
            Record({3: MODEL}),
            Record({}, {"n": nested(5000)}),
            Record({}, {"n": 10**400}),
            Record({}, {"n": object()}),
            Record({}, {"n": "x" * 1000}),
            Record({}, {"n": [0] * 1000}),
            UnreadableReply(reason="why"),
        ],
    )
    def test_refused(self, reply):
        with pytest.raises(InvalidReplyError):
            check_form(reply, LIMITS)

    def test_a_rule_that_fails_is_about_the_reply(self):
        schema = ReplySchema({"n": Count}, rule=lambda facts: facts["n"] / 0 > 1)
        with pytest.raises(InvalidReplyError, match="ZeroDivisionError"):
            check_content(schema, Record(), Record({}, {"n": 1}))


class TestReasons:
    def test_are_one_line_for_a_person(self):
        assert printable("a\n\x1b[2Jb\x07 c") == "a [2Jb c"
        assert len(printable("x" * 10**6)) == 200

    @pytest.mark.parametrize("error", [RecursionError, MemoryError, TypeError, OverflowError, KeyError])
    def test_whatever_goes_wrong_is_one(self, error):
        with pytest.raises(InvalidReplyError, match=error.__name__), as_invalid():
            raise error("deep")
