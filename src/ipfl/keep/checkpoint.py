"""A method's state on disk, bit for bit: arrays as tensors, the rest as JSON. Never a pickle.

The file names the dataclass of each value; allowed are only the classes that a fresh state of the same method
holds, so that a file cannot name a class of its own. A field marked `local` (where a folder is) is not
written; it comes from the fresh state too.

What a field marked `lasting` holds stays the same over several rounds, such as the models of the last ones.
Its arrays, which nobody may change in place, are written once, to a file of their own that later checkpoints
refer to: a round writes only what is new in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.system.files import (
    RECORD_SUFFIX,
    make_folder,
    read_record,
    refuse_special_file,
    remove,
    sync,
    write_record,
)

STATE, LASTING = "round", "vectors"
"""How the names of files begin: with a state, and with lasting arrays."""
ELSEWHERE = "elsewhere"
"""Fact of a state: its arrays that are in other files, each with the file and its name there."""


def pack_state(state: Any) -> Record:
    """The state as a record: every array under a number, once, and a tree that refers to them."""
    arrays: dict[str, Any] = {}
    names: dict[int, str] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if id(value) not in names:
                names[id(value)] = str(len(arrays))
                arrays[names[id(value)]] = value
            return {"array": names[id(value)]}
        if dataclasses.is_dataclass(value) or isinstance(value, BaseModel):
            fields = {name: walk(getattr(value, name)) for name in _names(value)}
            return {"class": type(value).__qualname__, "fields": fields}
        if isinstance(value, Mapping):
            return {"dict": [[walk(key), walk(item)] for key, item in value.items()]}
        if isinstance(value, tuple | list):
            return {type(value).__name__: [walk(item) for item in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"a method's state cannot hold {type(value).__name__}: {value!r}")

    tree = walk(state)
    return Record(arrays, {"state": tree})


def unpack_state(record: Record, like: Any) -> Any:
    """The state in a record: the reverse of `pack_state`.

    Args:
        record: What `pack_state` returned.
        like: A fresh state of the same method; its dataclasses are the only ones that are created.

    Raises:
        InputError: The record is not the state of such a method.
    """
    examples = _examples(like)

    def build(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, content), *rest) = node.items()
        if kind == "array":
            return record.params[content]
        if kind == "class":
            example = examples[content]
            fields = {name: build(item) for name, item in dict(rest)["fields"].items()}
            return type(example)(**fields, **{name: getattr(example, name) for name in _names(example, True)})
        if kind == "dict":
            return {build(key): build(item) for key, item in content}
        items = [build(item) for item in content]
        return {"tuple": tuple, "list": list}[kind](items)

    try:
        state = build(record.facts["state"])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _does_not_fit(repr(error)) from error
    if wrong := _differs(state, like, type(like).__name__):
        raise _does_not_fit(f"{wrong} is of another kind")
    return state


def _does_not_fit(reason: str) -> InputError:
    return InputError(
        "the checkpoint does not fit the method, perhaps because another version of ipfl wrote it: "
        f"start the run anew, or resume it with that version ({' '.join(reason.split())})"
    )


def _differs(value: Any, like: Any, where: str) -> str | None:
    """The first place where a state has another type than a fresh one; lengths are not compared."""
    if like is None:
        return None
    if isinstance(like, np.ndarray):
        fits = isinstance(value, np.ndarray) and (value.dtype, value.ndim) == (like.dtype, like.ndim)
    elif isinstance(like, Mapping):
        fits = isinstance(value, Mapping)
    elif isinstance(like, int | float) and not isinstance(like, bool):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = type(value) is type(like)
    if not fits:
        return where
    inner: list[tuple[Any, Any, str]] = []
    if dataclasses.is_dataclass(like) or isinstance(like, BaseModel):
        inner = [(getattr(value, name), getattr(like, name), f"{where}.{name}") for name in _names(like)]
    elif isinstance(like, tuple | list) and like:
        inner = [(item, like[min(n, len(like) - 1)], f"{where}[{n}]") for n, item in enumerate(value)]
    return next((wrong for one in inner if (wrong := _differs(*one))), None)


def _names(value: Any, local: bool = False) -> list[str]:
    """Names of the fields that a checkpoint holds, or of the local ones that it does not."""
    if isinstance(value, BaseModel):
        return [] if local else list(type(value).model_fields)
    return [field.name for field in dataclasses.fields(value) if field.metadata.get("local", False) == local]


def _examples(like: Any) -> dict[str, Any]:
    """One value of every dataclass (or config section) that occurs in a state, by its class's name."""
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(like) or isinstance(like, BaseModel):
        found[type(like).__qualname__] = like
        for name in _names(like):
            found |= _examples(getattr(like, name))
    elif isinstance(like, Mapping | tuple | list):
        for item in like.values() if isinstance(like, Mapping) else like:
            found |= _examples(item)
    return found


def _lasting_arrays(state: Any) -> Iterator[Any]:
    """Arrays of a state's fields that are marked as lasting, and of those of its records."""

    def walk(value: Any) -> Iterator[Any]:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, Mapping | tuple | list):
            for item in value.values() if isinstance(value, Mapping) else value:
                yield from walk(item)

    for field in dataclasses.fields(state) if dataclasses.is_dataclass(state) else ():
        value = getattr(state, field.name)
        yield from walk(value) if field.metadata.get("lasting", False) else _lasting_arrays(value)


class WrittenCheckpoint(NamedTuple):
    """A checkpoint that is on disk."""

    name: str
    files: Mapping[str, str]
    """SHA-256 of each file that it consists of, those of earlier rounds included."""


class Place(NamedTuple):
    """Where an array is on disk."""

    array: Any
    """Itself: as long as it is known here, no other array is at its place in memory."""
    file: str
    name: str


def file_digest(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        InputError: It is no plain file.
    """
    refuse_special_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checkpoints:
    """The folder of checkpoints: the last committed one, and perhaps one that is not committed yet."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._places: dict[int, Place] = {}  # of the lasting arrays of the newest checkpoint, by `id`
        self._digests: dict[str, str] = {}  # of the files that they are in

    def write(self, round: int, state: Any) -> WrittenCheckpoint:
        """Writes the state after a round; it is on disk when this returns.

        What was written of a round that was not committed, and is played again, is the same.
        """
        make_folder(self.folder)
        packed, lasting = pack_state(state), {id(array) for array in _lasting_arrays(state)}
        kept = {name: array for name, array in packed.params.items() if id(array) in lasting}
        fresh = {name: array for name, array in kept.items() if id(array) not in self._places}
        places = dict(self._places)
        if fresh:
            file = self.name(round, LASTING)
            write_record(self.folder / file, Record(fresh))
            places |= {id(array): Place(array, file, name) for name, array in fresh.items()}
        elsewhere = {name: places[id(array)][1:] for name, array in kept.items()}
        own = {name: array for name, array in packed.params.items() if name not in kept}
        write_record(self.folder / self.name(round), Record(own, {**packed.facts, ELSEWHERE: elsewhere}))
        digests = self._synced([self.name(round), *([self.name(round, LASTING)] if fresh else [])])
        self._places = {id(array): places[id(array)] for array in kept.values()}
        used = {place.file for place in self._places.values()}
        known = self._digests | digests
        self._digests = {file: known[file] for file in sorted(used)}
        return WrittenCheckpoint(
            self.name(round), {self.name(round): digests[self.name(round)], **self._digests}
        )

    def _synced(self, names: Sequence[str]) -> dict[str, str]:
        """SHA-256 of these files, which are on disk when this returns."""
        # The hash is computed from the system's cache while the disk is written: neither waits for the other.
        with ThreadPoolExecutor(1) as beside:
            digests = {name: beside.submit(file_digest, self.folder / name) for name in names}
            for name in names:
                sync(self.folder / name)
            sync(self.folder)  # the names
            sync(self.folder.parent)
        return {name: digest.result() for name, digest in digests.items()}

    @staticmethod
    def name(round: int, kind: str = STATE) -> str:
        """Name of the file with the state after a round, or with the lasting arrays that are new in it."""
        return f"{kind}-{round}{RECORD_SUFFIX}"

    def read(self, name: str, like: Any) -> Any:
        """The state in a file, and in those that it refers to."""
        record = self._record(name)
        try:
            elsewhere = {
                str(own): (str(file), str(there))
                for own, (file, there) in record.facts.get(ELSEWHERE, {}).items()
            }
            files = {file: self._record(file) for file in sorted({file for file, _ in elsewhere.values()})}
            found = {own: files[file].params[there] for own, (file, there) in elsewhere.items()}
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _does_not_fit(repr(error)) from error
        state = unpack_state(Record({**record.params, **found}, record.facts), like)
        self._places = {id(array): Place(array, *elsewhere[own]) for own, array in found.items()}
        self._digests = {file: file_digest(self.folder / file) for file in files}
        return state

    def _record(self, name: str) -> Record:
        if Path(name).name != name:
            raise InputError(f"{name!r} is not the name of a checkpoint")
        return read_record(self.folder / name)

    def keep_only(self, name: str) -> None:
        """Removes all checkpoints but the one that was written or read last, finished or not."""
        needed = {name, *self._digests}
        for kind in (STATE, LASTING):
            for path in self.folder.glob(f"{kind}-*"):
                if path.name not in needed:
                    remove(path)
