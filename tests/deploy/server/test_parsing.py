"""What a request parses into is bounded before it is parsed: for every route, and every field of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ipfl.deploy.server.front import (
    NODE_FIELDS,
    NODE_ROUTES,
    TASK_ROUTES,
    NodeGate,
    RefusedError,
    check_size,
)
from ipfl.deploy.server.parsing import TooManyFieldsError, count_fields
from ipfl.engines.flower.flwr_internals import request_type

MOST_MEGABYTES = 8
"""What NODE_FIELDS fields may parse into: 400 bytes each."""
NEVER = NodeGate(lambda key: None)


def trees(children: Any) -> Any:
    return st.builds(ObjectTree, object_id=st.text(max_size=3), children=st.lists(children, max_size=4))


TREES = st.recursive(st.builds(ObjectTree, object_id=st.text(max_size=3)), trees, max_leaves=30)


def fields_of(tree: ObjectTree) -> int:
    """By hand: its name, if it has one, and for each child the field that it is in and its own fields."""
    return bool(tree.object_id) + sum(1 + fields_of(child) for child in tree.children)


@given(st.lists(TREES, max_size=5))
def test_fields_are_counted_at_every_depth(forest: list[ObjectTree]) -> None:
    body = PushMessagesRequest(message_object_trees=forest).SerializeToString()
    expected = sum(1 + fields_of(tree) for tree in forest)
    assert count_fields(body, PushMessagesRequest.DESCRIPTOR, expected) == expected
    if expected:
        with pytest.raises(TooManyFieldsError):
            count_fields(body, PushMessagesRequest.DESCRIPTOR, expected - 1)


@given(st.binary(max_size=60))
def test_nothing_is_refused_that_protobuf_reads(body: bytes) -> None:
    try:
        PushMessagesRequest.FromString(body)
    except DecodeError:
        return
    if any(byte & 7 == 3 for byte in body):  # perhaps a group, which Flower's messages have none of
        return
    assert count_fields(body, PushMessagesRequest.DESCRIPTOR, 1000) <= len(body)


def field_places(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field that a message can have, with the fields that it is in; a recursion once."""
    for field in kind.fields:
        yield (*above, field)
        if field.message_type is not None and field not in above:
            yield from field_places(field.message_type, (*above, field))


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


def written(field: Any, count: int) -> bytes:
    """A field so many times, each time as short as it can be written: no text, a zero, an empty message."""
    if field.message_type is not None or field.type in (9, 12):
        return (varint(field.number << 3 | 2) + b"\0") * count
    size = {1: 8, 6: 8, 16: 8, 2: 4, 7: 4, 15: 4}.get(field.type)
    if field.is_repeated:  # packed: one field, and each byte counts
        return (
            varint(field.number << 3 | 2)
            + varint((count - 1) // (size or 1) * (size or 1))
            + b"\0" * ((count - 1) // (size or 1) * (size or 1))
        )
    return (varint(field.number << 3 | {8: 1, 4: 5}.get(size or 0, 0)) + b"\0" * (size or 1)) * count


def body_of(place: tuple[Any, ...], count: int) -> bytes:
    """A body whose innermost part has so many fields."""
    body = written(place[-1], count)
    for field in reversed(place[:-1]):
        body = varint(field.number << 3 | 2) + varint(len(body)) + body
    return body


def peak_of_parsing(path: bytes, body: bytes) -> float:
    """Megabytes by which a process grows at most while it parses a body."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:

        def status(name: str) -> int:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name))

        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of the parent
        before = status("VmRSS")
        with suppress(DecodeError):
            PROTOBUF_REQUEST_TYPES["POST", path.decode()].FromString(body)
        os.write(write, str((status("VmHWM") - before) / 1024).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return float(answer.read())


@pytest.mark.parametrize("path", sorted(NODE_ROUTES))
def test_every_field_of_every_route_is_bounded(path: bytes) -> None:
    """At the limit it is allowed, and small when it is parsed; with one field more it is refused."""
    places = list(field_places(request_type(path.decode())))
    assert places
    for place in places:
        around = len(place) - 1
        full = body_of(place, NODE_FIELDS - around)
        check_size(path, full, NODE_FIELDS)
        assert peak_of_parsing(path, full) < MOST_MEGABYTES, [field.name for field in place]
        with pytest.raises(RefusedError) as refused:
            NEVER.check_body(path, body_of(place, NODE_FIELDS - around + 8))
        assert refused.value.status == 413


@pytest.mark.parametrize("path", sorted(NODE_ROUTES | TASK_ROUTES))
def test_every_route_is_known_and_checked(path: bytes) -> None:
    for body in (b"\x0b", b"\xff" * 11, b"\x0a\x05abc"):  # a group; no number; longer than it is
        with pytest.raises(RefusedError) as refused:
            check_size(path, body, 10)
        assert refused.value.status == 400
