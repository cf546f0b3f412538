"""What a valid reply is: form, size, names, types, ranges, vectors, rules; what is refused, on one line."""

from __future__ import annotations

import numpy as np
import pytest

from ipfl.core import Ask, Record
from ipfl.core.replies import (
    MAX_COMPONENT,
    MAX_FACT,
    Count,
    InvalidReplyError,
    NonNegative,
    Number,
    PositiveShare,
    ReplyLimits,
    ReplySchema,
    UnreadableReply,
    Whole,
    as_invalid,
    check_content,
    check_form,
    index_below,
    is_vector,
    list_of,
    printable,
)
from ipfl.core.vectors import mean

SENT = Record()
NAN, INF = float("nan"), float("inf")


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def complaint(schema: ReplySchema, reply: Record, sent: Record = SENT) -> str | None:
    """What is wrong with a reply."""
    try:
        schema.check(sent, reply)
    except InvalidReplyError as error:
        return str(error)
    return None


def is_valid(schema: ReplySchema, reply: Record, sent: Record = SENT) -> bool:
    text = complaint(schema, reply, sent)
    assert text is None or ("\n" not in text and 0 < len(text) < 300)
    return text is None


def is_fact(kind: object, value: object) -> bool:
    return is_valid(ReplySchema({"x": kind}), Record({}, {"x": value}))


class TestNames:
    SCHEMA = ReplySchema({"n": Count}, {"model": 2})

    def test_all_that_is_expected_and_nothing_more(self):
        assert is_valid(self.SCHEMA, Record({"model": vector(1, 2)}, {"n": 3}))

    @pytest.mark.parametrize(
        "reply",
        [
            Record(),
            Record({"model": vector(1, 2)}),
            Record({}, {"n": 3}),
            Record({"other": vector(1, 2)}, {"n": 3}),
            Record({"model": vector(1, 2)}, {"m": 3}),
            Record({"model": vector(1, 2), "other": vector(1)}, {"n": 3}),
            Record({"model": vector(1, 2)}, {"n": 3, "more": 1}),
            Record({"model": vector(1, 2)}, {"n": 3, 7: 1}),
        ],
    )
    def test_anything_else_is_refused(self, reply):
        assert not is_valid(self.SCHEMA, reply)

    def test_the_default_expects_nothing(self):
        assert is_valid(Ask("train", {}).expects, Record())
        assert not is_valid(Ask("train", {}).expects, Record({}, {"n": 1}))

    def test_a_thousand_names_make_a_short_message(self):
        assert not is_valid(self.SCHEMA, Record({}, {f"fact {i}": 1 for i in range(1000)}))


class TestFacts:
    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (Whole, [0, 1, 10**9]),
            (Count, [1, 10**9]),
            (Number, [0, -1.5, 3, MAX_FACT, -MAX_FACT]),
            (NonNegative, [0, 0.0, 2.5, MAX_FACT]),
            (PositiveShare, [1, 0.5, 1e-9]),
            (index_below(3), [0, 2]),
            (list_of(Whole, 2), [[0, 7]]),
            (list[Whole], [[], [1, 2, 3]]),
            (list_of(Number, 0), [[]]),
        ],
    )
    def test_valid(self, kind, values):
        assert [value for value in values if not is_fact(kind, value)] == []

    @pytest.mark.parametrize("kind", [Whole, Count, Number, NonNegative, index_below(3)])
    @pytest.mark.parametrize(
        "value",
        [NAN, INF, -INF, True, "1", None, [1], {}, 2 * MAX_FACT, -(10**400), 10**400, 1e300, b"1", 1j],
        ids=repr,
    )
    def test_never_valid(self, kind, value):
        assert not is_fact(kind, value)

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (Whole, [-1, 1.0, 0.5, 10**9 + 1, np.int64(3)]),
            (Count, [0, -4, 1.0, 10**9 + 1, 2**53]),
            (NonNegative, [-1, -1e-9]),
            (PositiveShare, [0, -0.5, 1.5, 2]),
            (index_below(3), [3, -1, 1.0]),
            (
                list_of(Whole, 2),
                [[1], [1, 2, 3], [1, True], [1, NAN], [1, "2"], [1, None], (1, 2), "ab", 5, None],
            ),
            (list_of(Number, 1), [[NAN], [[1.0]], ["low"], [], np.zeros(1)]),
            (list[Whole], [[-1], [0.5], {0: 1}, "0"]),
        ],
    )
    def test_out_of_range_or_of_another_type(self, kind, values):
        assert [value for value in values if is_fact(kind, value)] == []

    def test_by_what_was_sent(self):
        schema = ReplySchema(lambda sent: {"losses": list_of(Number, len(sent.params))})
        sent = Record({"a": vector(1), "b": vector(2)})
        assert is_valid(schema, Record({}, {"losses": [1.0, 2.0]}), sent)
        assert not is_valid(schema, Record({}, {"losses": [1.0]}), sent)


class TestVectors:
    @pytest.mark.parametrize("values", [(), (0, 0), (-MAX_COMPONENT, MAX_COMPONENT)])
    def test_valid(self, values):
        assert is_vector(vector(*values), len(values))

    @pytest.mark.parametrize(
        "value",
        [
            vector(1, NAN),
            vector(INF, 1),
            vector(1, -INF),
            vector(1.1 * MAX_COMPONENT, 0),
            vector(0, -1e30),
            vector(1),
            vector(1, 2, 3),
            np.ones((2, 1), np.float32),
            np.ones((1, 2), np.float32),
            np.ones(2),
            np.ones(2, np.int32),
            np.ones(2, np.float16),
            np.ones(2, bool),
            [1.0, 2.0],
            None,
        ],
    )
    def test_invalid(self, value):
        assert not is_vector(value, 2)
        assert not is_valid(ReplySchema({}, {"model": 2}), Record({"model": value}))

    def test_the_mean_of_valid_vectors_is_valid(self):
        """The point of a bound: whatever the weights of the replies, the aggregate is within it."""
        replies = [vector(1e6, -1e6), vector(1e6, 1e6), vector(0, -1e6)]
        assert is_vector(mean(replies, [2.0**53, 1, 1]), 2)

    def test_the_same_as_were_sent(self):
        schema = ReplySchema({}, lambda sent, facts: {name: len(v) for name, v in sent.params.items()})
        sent = Record({"a": vector(1), "b": vector(2, 3)})
        assert is_valid(schema, Record({"a": vector(9), "b": vector(8, 7)}), sent)
        assert not is_valid(schema, Record({"a": vector(9), "b": vector(8)}), sent)
        assert not is_valid(schema, Record({"a": vector(9)}), sent)

    def test_by_what_the_reply_says_of_itself(self):
        schema = ReplySchema(
            {"cluster": index_below(2)}, lambda sent, facts: {f"cluster_{facts['cluster']}": 1}
        )
        assert is_valid(schema, Record({"cluster_1": vector(5)}, {"cluster": 1}))
        assert not is_valid(schema, Record({"cluster_0": vector(5)}, {"cluster": 1}))
        # The facts come first: a function of the vectors never sees a cluster that there is not.
        assert not is_valid(schema, Record({"cluster_7": vector(5)}, {"cluster": 7}))


class TestRule:
    SCHEMA = ReplySchema({"hits": NonNegative, "n": Whole}, rule=lambda facts: facts["hits"] <= facts["n"])

    def test_facts_that_contradict_each_other(self):
        assert is_valid(self.SCHEMA, Record({}, {"hits": 3.0, "n": 3}))
        with pytest.raises(InvalidReplyError, match="hits, n contradict each other"):
            self.SCHEMA.check(SENT, Record({}, {"hits": 4.0, "n": 3}))


def test_the_message_names_the_fact_or_the_vector():
    schema = ReplySchema({"n": Count}, {"model": 2})
    for reply, text in [
        (Record({"model": vector(1, 2)}, {"n": 0}), "^n: .*greater than or equal to 1"),
        (Record({"model": vector(1, NAN)}, {"n": 1}), "^model is not a vector of 2 numbers up to 1e\\+06"),
        (Record({"model": vector(1, 2)}, {}), "^expected the facts n, got none"),
    ]:
        with pytest.raises(InvalidReplyError, match=text):
            schema.check(SENT, reply)


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
        check_content(SCHEMA, SENT, Record({"m": MODEL}, {"n": 3, "hits": [1.5, 2.0]}))


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
