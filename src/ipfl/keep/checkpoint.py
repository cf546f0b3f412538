"""A method's state on disk, bit for bit: arrays as tensors, the rest as JSON. Never a pickle.

The file names the dataclass of each value; allowed are only the classes that a fresh state of the same method
holds, so that a file cannot name a class of its own. A field marked `local` (where a folder is) is not
written; it comes from the fresh state too.

An array that is read-only cannot change, such as a model of an earlier round that a method still needs. It is
written once, to a file beside the state; later checkpoints refer to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
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
    sync_all,
    write_record,
)

STATE_FILE, VECTORS_FILE = "round", "vectors"
"""Beginnings of file names: of a state, and of read-only arrays."""
READ_ONLY = "read_only"
"""Fact of a checkpoint: its arrays that are read-only, each with a file and its name there."""


class Place(NamedTuple):
    """The place of a read-only array on disk."""

    array: Any
    """Itself: as long as it is known here, no other array is at its place in memory."""
    file: str
    name: str


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
        self.digests: dict[str, str] = {}
        """SHA-256 of each file that the newest checkpoint consists of."""
        self._places: dict[int, Place] = {}  # of its read-only arrays, by `id`

    def write(self, round: int, state: Any) -> str:
        """Writes the state after a round, and returns the file's name; it is on disk then.

        What was written of a round that was not committed, and is played again, is the same.
        """
        make_folder(self.folder)
        packed, path = pack_state(state), self.folder / self.name(round)
        beside = self.folder / self.name(round, VECTORS_FILE)
        places = {
            name: self._places.get(id(array), Place(array, beside.name, name))
            for name, array in packed.params.items()
            if not array.flags.writeable
        }
        fresh = {name: place.array for name, place in places.items() if place.file == beside.name}
        if fresh:
            write_record(beside, Record(fresh))
        own = {name: array for name, array in packed.params.items() if name not in places}
        refers = {name: [place.file, place.name] for name, place in places.items()}
        write_record(path, Record(own, {**packed.facts, READ_ONLY: refers}))
        sync_all([path, *([beside] if fresh else []), self.folder, self.folder.parent])
        self._know(path.name, places)
        return path.name

    def _know(self, newest: str, places: Mapping[str, Place]) -> None:
        """Remembers of what the newest checkpoint consists."""
        self._places = {id(place.array): place for place in places.values()}
        files = {place.file for place in places.values()}
        known = {file: self.digests.get(file) or file_digest(self.folder / file) for file in sorted(files)}
        self.digests = {**known, newest: file_digest(self.folder / newest)}

    @staticmethod
    def name(round: int, kind: str = STATE_FILE) -> str:
        """Name of the file with the state after a round, or with the read-only arrays that are new in it."""
        return f"{kind}-{round}{RECORD_SUFFIX}"

    def read(self, name: str, like: Any) -> Any:
        """The state in a file, and in those that it refers to."""
        record = self._record(name)
        try:
            refers = {str(own): (str(f), str(there)) for own, (f, there) in record.facts[READ_ONLY].items()}
            files = {file: self._record(file) for file in sorted({file for file, _ in refers.values()})}
            places = {
                own: Place(files[file].params[there], file, there) for own, (file, there) in refers.items()
            }
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _does_not_fit(repr(error)) from error
        found = {own: place.array for own, place in places.items()}
        for array in found.values():
            array.flags.writeable = False
        state = unpack_state(Record({**record.params, **found}, record.facts), like)
        self._know(name, places)
        return state

    def _record(self, name: str) -> Record:
        if Path(name).name != name:
            raise InputError(f"{name!r} is not the name of a checkpoint")
        return read_record(self.folder / name)

    def remove_others(self) -> None:
        """Removes all files but those of the newest checkpoint, finished or not."""
        for kind in (STATE_FILE, VECTORS_FILE):
            for path in self.folder.glob(f"{kind}-*"):
                if path.name not in self.digests:
                    remove(path)
