"""Replies that no honest client sends: drawn, made of honest ones, as records and as messages of Flower.

A mutation is drawn without knowing the reply that it is applied to: a kind, a value, and a number that says
which fact or which vector. So drawing is cheap, and one mutation fits every action of every method.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import strategies as st

from ipfl.core import Record
from ipfl.engines.flower.message_headers import ReplyHeader
from ipfl.engines.flower.messages import RAW_BYTES, Encoder, array_digest, pack

DEEP = json.loads("[" * 900 + "]" * 900)
DEEPER: list[Any] = []
for _ in range(5000):
    DEEPER = [DEEPER]

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**53, 2**53 + 1, -(2**53), 2**63, 2**64, 10**30]),
    st.sampled_from([0.0, -0.0, 0.5, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(["", "0", "nan", "x" * 70_000, "\x1b[2J", "\udcff", "cluster_0"]),
)
VALUES = st.one_of(
    PLAIN,
    st.lists(PLAIN, max_size=4),
    st.dictionaries(st.sampled_from(["n", "a", ""]), PLAIN, max_size=2),
    st.sampled_from([DEEP, DEEPER, [[1, 2], [3]], [0] * 10_000]),
)
OBJECTS = st.sampled_from([b"bytes", {1}, object(), np.float32(1), np.arange(3), complex(1), range(3)])

Vectors = Callable[[np.ndarray], Any]
VECTORS: list[Vectors] = [
    lambda vector: vector.astype(np.float64),
    lambda vector: vector[:-1],
    lambda vector: np.append(vector, vector[:1]),
    lambda vector: vector[:, None],
    lambda vector: vector[:0],
    lambda vector: np.zeros((0, 2**40), np.float32),
    lambda vector: np.zeros(10**6, np.float32),
    lambda vector: np.full_like(vector, np.nan),
    lambda vector: np.full_like(vector, np.inf),
    lambda vector: np.full_like(vector, 1e6),
    lambda vector: np.full_like(vector, -1e6),
    lambda vector: np.full_like(vector, 3e38),
    lambda vector: np.zeros_like(vector),
    lambda vector: np.where(np.arange(len(vector)) % 2, 1e6, -1e6).astype(np.float32),
    lambda vector: vector.astype(object),
    lambda vector: vector.tolist(),
    lambda vector: None,
    lambda vector: np.ma.masked_array(vector),
    lambda vector: vector[::-1],
]

Mutation = tuple[str, Any, int]
"""What is done, with which value, to which fact or vector."""
NUMBERS = st.integers(0, 5)
RECORD_MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    st.tuples(st.just("fact"), VALUES | OBJECTS, NUMBERS),
    st.tuples(st.just("part of a fact"), PLAIN, NUMBERS),
    st.tuples(st.just("extreme"), st.sampled_from([0, 1, 2**53, -(2**53), 0.0, 1e-300]), NUMBERS),
    st.tuples(st.just("vector"), st.integers(0, len(VECTORS) - 1), NUMBERS),
    st.tuples(st.sampled_from(["drop fact", "drop vector", "swap"]), st.none(), NUMBERS),
    st.tuples(st.sampled_from(["add fact", "add vector"]), st.sampled_from(["x", "", 3, None]), NUMBERS),
    st.tuples(st.just("whole"), VALUES | OBJECTS, NUMBERS),
    st.tuples(st.sampled_from(["facts", "vectors"]), VALUES, NUMBERS),
)
"""Of the records that clients play on the local engine may return."""
SHAPES = [(0, 2**62), (1,) * 65, (-1,), (), (2**62,), (1, 1), (10**9, 10**9), (3,)]
HEADERS = ["", "[", "{}", "[]", "null", "[" * 5000, "[" * 300_000, '{"client": 0', "1e999999", "9" * 5000]
MESSAGE_MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    RECORD_MUTATIONS,
    st.tuples(st.just("header"), st.sampled_from(HEADERS), NUMBERS),
    st.tuples(st.just("field"), VALUES, NUMBERS),
    st.tuples(st.just("shape"), st.sampled_from(SHAPES), NUMBERS),
    st.tuples(st.just("type"), st.sampled_from(["float16", "uint8", "int64", "object", ""]), NUMBERS),
    st.tuples(st.just("data"), st.binary(max_size=8), NUMBERS),
    st.tuples(st.sampled_from(["no header", "no arrays", "other digest", "many arrays"]), st.none(), NUMBERS),
)
"""Of the messages that nodes may send."""


def _named(names: Mapping[Any, Any], number: int) -> Any:
    """One of the names, or another one if there are none."""
    return sorted(names, key=str)[number % len(names)] if names else "n"


def hostile_record(honest: Record, mutation: Mutation) -> Any:
    """What a client sends instead of an honest reply."""
    kind, value, number = mutation
    facts, vectors = dict(honest.facts), dict(honest.params)
    fact, vector = _named(facts, number), _named(vectors, number)
    if kind == "whole":
        return value
    if kind in ("facts", "vectors"):
        return Record(vectors, value) if kind == "facts" else Record(value, facts)
    if kind == "fact":
        facts[fact] = value
    elif kind == "part of a fact":
        old = facts.get(fact)
        facts[fact] = [value, *old[1:]] if isinstance(old, list) else value
    elif kind == "extreme":
        facts = {name: [value] * len(old) if isinstance(old, list) else value for name, old in facts.items()}
    elif kind == "vector" and vectors:
        vectors[vector] = VECTORS[value](vectors[vector])
    elif kind == "drop fact":
        facts.pop(fact, None)
    elif kind == "drop vector":
        vectors.pop(vector, None)
    elif kind == "add fact":
        facts[value] = 1
    elif kind == "add vector":
        vectors[value] = np.zeros(3, np.float32)
    elif kind == "swap":
        values = list(facts.values())
        facts = dict(zip(facts, values[1:] + values[:1], strict=True))
    return Record(vectors, facts)


def _encoded(record: Any, client: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a reply; what cannot be encoded cannot be sent, and becomes a text."""
    try:
        digests, arrays = Encoder().encode(record)
        header = json.loads(json.dumps(ReplyHeader(client, digests, record.facts).to_header()))
        return header, dict(arrays)
    except Exception:
        return {"client": client, "params": {}, "facts": {"n": type(record).__name__}}, {}


def _array(array: Array, **changes: Any) -> Array:
    fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    return Array(**(fields | changes))


def hostile_message(honest: Record, mutation: Mutation, client: int) -> RecordDict:
    """What a node sends instead of an honest reply."""
    kind, value, number = mutation
    header, arrays = _encoded(honest, client)
    name = _named(arrays, number)
    if kind == "header":
        content = pack({}, arrays)
        content["head"] = ConfigRecord({"json": value})
        return content
    if kind == "field":
        header[["client", "params", "facts", "missing", "error", "kind"][number]] = value
    elif kind in ("shape", "type", "data") and arrays:
        field = {"shape": "shape", "type": "dtype", "data": "data"}[kind]
        changed = _array(arrays[name], **{field: value})
        arrays[name] = changed
    elif kind == "other digest" and arrays:
        arrays["0" * 32] = arrays.pop(name)
    elif kind == "many arrays":
        empty = np.zeros(0, np.float32)
        array = Array(dtype="float32", shape=(0,), stype=RAW_BYTES, data=b"")
        arrays |= {array_digest(empty): array, **{str(n): array for n in range(50)}}
    elif kind == "no header":
        return RecordDict({"arrays": ArrayRecord(arrays)})
    elif kind == "no arrays":
        return RecordDict({"head": ConfigRecord({"json": "{}"})})
    else:
        header, arrays = _encoded(hostile_record(honest, mutation), client)
    try:
        return pack(header, arrays)
    except (RecursionError, ValueError):  # deeper than json writes: as text
        return RecordDict({"head": ConfigRecord({"json": "[" * 900}), "arrays": ArrayRecord(arrays)})
