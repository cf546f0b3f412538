"""Memory that runs out at any step of reading something foreign: one clean error, about this thing alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from ipfl.core import Record
from ipfl.core.replies import (
    Count,
    InvalidReplyError,
    NonNegative,
    ReplySchema,
    check_content,
    check_form,
    list_of,
)
from ipfl.engines.flower.flower_engine import _read_reply
from ipfl.engines.flower.message_headers import ReplyHeader
from ipfl.engines.flower.messages import Encoder, pack
from ipfl.engines.flower.transport import IncomingReply
from ipfl.errors import InputError
from ipfl.system.files import read_json, read_record, write_json, write_record

RECORD = Record({"m": np.arange(3, dtype=np.float32)}, {"n": 3, "hits": [1.5, 2.0]})
SCHEMA = ReplySchema({"n": Count, "hits": list_of(NonNegative, 2)}, {"m": 3})
ASKED = Record()
LIMITS = SCHEMA.limits(ASKED)


def is_around(frame: FrameType | None) -> bool:
    """Whether it is this test, or what makes one error of all others, and not the reading itself."""
    code = None if frame is None else frame.f_code
    return code is None or code.co_filename in (__file__, contextlib.__file__) or code.co_name == "as_invalid"


class NoMemory:
    """Raises a `MemoryError` at one of the calls that a function makes, of Python or of C.

    Args:
        at: The number of the call, from 1; 0: none, all are only counted.
    """

    def __init__(self, at: int = 0):
        self.at, self.calls = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        caller = frame.f_back if event == "call" else frame
        if event not in ("call", "c_call") or any(map(is_around, (frame, caller))):
            return
        self.calls += 1
        if self.calls == self.at:
            raise MemoryError

    def run(self, function: Callable[[], Any]) -> None:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            function()
        finally:
            sys.setprofile(before)


def check_reply() -> None:
    check_form(RECORD, LIMITS)
    check_content(SCHEMA, ASKED, RECORD)


def flower_reply() -> Callable[[], Any]:
    digests, arrays = Encoder().encode(RECORD)
    reply = IncomingReply(pack(ReplyHeader(0, digests, RECORD.facts).to_header(), arrays))
    return lambda: _read_reply(0, reply, LIMITS)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("record", InputError),
        ("json", InputError),
        ("reply", InvalidReplyError),
        ("message", InvalidReplyError),
    ],
)
def test_no_memory_at_any_step(tmp_path: Path, kind: str, error: type[Exception]) -> None:
    record, json = tmp_path / "record.safetensors", tmp_path / "some.json"
    write_record(record, RECORD)
    write_json(json, {"a": [1, {"b": None}]})
    read: Callable[[], Any] = {
        "record": lambda: read_record(record),
        "json": lambda: read_json(json, "thing"),
        "reply": check_reply,
        "message": flower_reply(),
    }[kind]
    read()  # what is done once only
    counted = NoMemory()
    counted.run(read)
    assert counted.calls > 15
    for number in range(1, counted.calls + 1):
        with pytest.raises(error) as caught:
            NoMemory(number).run(read)
        assert len(str(caught.value).splitlines()) == 1, number
        assert "Memory" in str(caught.value), number
