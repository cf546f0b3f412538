"""What the fuzz tests feed to whatever reads input from outside, and how it is fed.

Random bytes rarely get past the first check of a format, so most inputs are valid ones with a few edits:
bytes changed, tokens put in, pieces cut; or a tree with a hostile value somewhere in it. A reader may make
something of an input or raise InputError with one line; anything else is a fault, and so is a gigabyte.
"""

from __future__ import annotations

import copy
import math
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipfl.errors import InputError

MAX_GROWTH_BYTES = 2**30
"""Bytes by which this process may grow while it is fed. Asking for more fails, and is no clean error."""


@contextmanager
def little_memory() -> Iterator[None]:
    """Lets the process grow by `MAX_GROWTH_BYTES` only, counting what it reserves and does not use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_GROWTH_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def feed(count: int, inputs: st.SearchStrategy[Any], check: Callable[[Any], object]) -> None:
    """Checks so many inputs, the same ones in every run."""
    fed = 0

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def one(content: Any) -> None:
        nonlocal fed
        fed += 1
        check(content)

    with little_memory():
        one()
    assert fed >= count, f"only {fed} inputs: the strategy has no more"


def clean(read: Callable[[], Any]) -> Any:
    """What a reader makes of its input; None if it refuses it in one line."""
    try:
        return read()
    except InputError as error:
        said = str(error)
    assert said.strip(), "an error that says nothing"
    assert len(said.splitlines()) == 1, f"not one line: {said}"
    return None


def refused(read: Callable[[], Any], says: str | None = None) -> None:
    """Something that was a fault once: what it is must be said in one line, in little memory."""
    with little_memory(), pytest.raises(InputError, match=says) as caught:
        read()
    assert len(str(caught.value).splitlines()) == 1


HUGE = [2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400, -1]
WORDS = [
    "",
    " ",
    "\0",
    "a\nb",
    "\u2028",
    "\ud800",
    "🙂",
    "é" * 300,
    "nan",
    "1e999",
    "..",
    "../..",
    "a:b",
    "{",
    "'",
]
SCALARS = st.one_of(
    st.sampled_from([None, True, False, 0, 1, *HUGE]),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1e-320, 1e308]),
    st.sampled_from(WORDS),
    st.integers(-10, 100),
    st.text(max_size=6),
)
"""Values that are at home nowhere."""
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4),
    ),
    max_leaves=6,
)
"""JSON of any shape."""


def hostile(tree: Any, words: Sequence[Any] = ()) -> st.SearchStrategy[Any]:
    """A tree with one to three places changed: another value, gone, or twice.

    Args:
        tree: Valid JSON.
        words: Values that come close to what the reader wants.
    """
    values = st.one_of(*[st.sampled_from(list(words))] * bool(words), SCALARS, TREES)
    path = st.lists(st.integers(0, 10**6), max_size=6)
    change = st.tuples(path, st.sampled_from(("set", "set", "drop", "twice", "wrap")), values)
    return st.lists(change, min_size=1, max_size=3).map(lambda changes: _changed(tree, changes))


def _changed(tree: Any, changes: Sequence[tuple[list[int], str, Any]]) -> Any:
    holder = [copy.deepcopy(tree)]
    for path, action, drawn in changes:
        value = copy.deepcopy(drawn)
        here: Any = holder
        place: Any = 0
        for step in path:
            inner = here[place]
            if not isinstance(inner, dict | list) or not inner:
                break
            here = inner
            place = list(inner)[step % len(inner)] if isinstance(inner, dict) else step % len(inner)
        if action == "set" or here is holder:
            here[place] = value
        elif action == "drop":
            del here[place]
        elif action == "wrap":
            here[place] = [here[place], value]
        elif isinstance(here, list):
            here.insert(place, here[place])
        else:
            here[f"{place}{value}"[:20]] = here[place]
    return holder[0]


TOKENS = [
    b"\0",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\0" * 8,
    b"{",
    b"[",
    b"]" * 20,
    b"NaN",
    b"-1",
    b"1e999",
    b"\n",
]


def edited(files: Sequence[bytes], words: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """One of some valid files with one to four edits.

    Args:
        files: Valid ones.
        words: Pieces that mean something in the format.
    """
    place = st.integers(0, 2**20)
    piece = st.sampled_from([*TOKENS, *words]) | st.binary(max_size=8)
    kinds = st.sampled_from(("flip", "write", "insert", "delete", "repeat", "cut"))
    edits = st.lists(st.tuples(kinds, place, piece), min_size=1, max_size=4)
    return st.tuples(st.sampled_from(list(files)), edits).map(lambda drawn: _edit(*drawn))


def _edit(file: bytes, edits: Sequence[tuple[str, int, bytes]]) -> bytes:
    data = bytearray(file)
    for kind, place, piece in edits:
        at = place % (len(data) + 1)
        if kind == "cut":
            del data[at:]
        elif kind == "flip" and at < len(data):
            data[at] ^= 1 << place % 8
        elif kind == "write":
            data[at : at + len(piece)] = piece
        elif kind == "insert":
            data[at:at] = piece
        elif kind == "delete":
            del data[at : at + 1 + place % 40]
        elif kind == "repeat":
            data[at:at] = data[at : at + 1 + place % 40]
    return bytes(data)
