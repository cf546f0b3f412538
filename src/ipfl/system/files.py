"""The one place for files: written whole or not at all, as text, JSON, or records. Never a pickle.

A record on disk is a safetensors file with the vectors, and the facts as JSON in its header. All that a run
writes goes through here (its database excepted), so that tests can let a process die before and after every
single operation (`before_operation`).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ipfl.core.records import Record
from ipfl.errors import InputError

DRAFT_SUFFIX = ".draft"
"""Of a file that is being written; it gets its name when it is complete."""
RECORD_SUFFIX = ".safetensors"
"""Of the files that `write_record` writes."""
SYNCS_AT_A_TIME = 16
"""Files that wait for the disk together: it writes all that wait at once."""


DISK_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when a file cannot grow: no space, no quota, a limit on its size."""


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed for want of space."""
    return isinstance(error, OSError) and error.errno in DISK_FULL_CODES


@contextmanager
def explain_full_disk(advice: str = "") -> Iterator[None]:
    """Inside, a full disk is an input error of one line, which ends with this advice."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        where = f": {error.filename}" if error.filename else ""
        raise InputError(f"the disk is full ({error.strerror}{where}){advice}") from error


def before_operation(kind: str, path: Path) -> None:
    """Called before every operation on files, and with "written" and "appended" after the content is there.

    It does nothing; tests put something in its place that ends the process.

    Args:
        kind: `write`, `written`, `append`, `appended`, `rename`, `sync`, `remove` or `folder`.
        path: What it is done to.
    """


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a draft to write to, which takes the place of `path` at the end; removed if anything fails."""
    draft = path.with_suffix(f".{os.getpid()}{DRAFT_SUFFIX}")
    try:
        before_operation("write", draft)
        yield draft
        before_operation("written", draft)
        rename(draft, path)
    except OSError as error:  # half a file would only take up space
        draft.unlink(missing_ok=True)
        if error.filename is None:  # of an operation on an open file
            error.filename = str(path)
        raise


def rename(source: Path, target: Path) -> None:
    """Gives a file another name, in place of the file that has it, if there is one."""
    before_operation("rename", source)
    os.replace(source, target)


def remove(path: Path) -> None:
    """Removes a file, if it is there."""
    before_operation("remove", path)
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Removes a folder with all that is in it, as far as possible; of a link to one, the link alone."""
    before_operation("remove", path)
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def remove_drafts(folder: Path) -> None:
    """Removes what processes that died while they wrote have left in a folder."""
    for path in folder.glob(f"*{DRAFT_SUFFIX}"):
        remove(path)


def make_folder(path: Path) -> None:
    """Makes a folder, and those that it is in."""
    if not path.is_dir():
        before_operation("folder", path)
        path.mkdir(parents=True, exist_ok=True)


def sync_all(paths: Iterable[Path]) -> None:
    """Returns when these files, and the names in these folders, are on disk; together is much faster."""
    waiting = [*paths]
    for path in waiting:
        before_operation("sync", path)
    with ThreadPoolExecutor(SYNCS_AT_A_TIME) as beside:
        for _ in beside.map(_sync, waiting):
            pass  # an exception is raised here


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(handle)


def append(path: Path, content: bytes) -> None:
    """Adds to the end of a file all or nothing, unless the process dies meanwhile."""
    before_operation("append", path)
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while content:  # a nearly full disk takes a part
                content = content[file.write(content) or 0 :]
        except OSError:
            with suppress(OSError):  # what comes first is what went wrong first
                file.truncate(end)
            raise
    before_operation("appended", path)


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def refuse_special_file(path: Path) -> None:
    """Accepts a file, also one that is not there yet.

    Raises:
        InputError: It is a folder, or a pipe or device, which would be waited for.
    """
    try:
        is_special = path.exists() and not path.is_file()
    except (OSError, ValueError):  # such as a name that is too long: reading it gives the error
        return
    if is_special:
        raise InputError(f"{path} is not a file")


def read_bytes(path: Path) -> bytes:
    """The content of a file in a folder that may be somebody else's.

    Raises:
        InputError: It is no plain file.
        OSError: It cannot be read.
    """
    refuse_special_file(path)
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The same as text.

    Raises:
        ValueError: It is none.
    """
    return read_bytes(path).decode("utf-8")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Reads a JSON file of somebody's, which is not trusted.

    Args:
        path: Where it is.
        what: What it should be, in messages.

    Raises:
        InputError: It cannot be read, or is not a JSON object.
    """
    try:
        content = json.loads(read_text(path))
        if isinstance(content, dict):
            return content
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is no {what}: {reason}") from error
    raise InputError(f"{path} is no {what}")


def write_record(path: Path, record: Record) -> None:
    """Writes a record whole or not at all."""
    # safetensors means the values in the order of the axes, which is not how a strided view lies in memory.
    vectors = {name: np.ascontiguousarray(vector) for name, vector in record.params.items()}
    # Not by its `save_file`: killed half-way, that leaves a file with a name of its choice.
    with atomic_write(path) as draft:
        draft.write_bytes(save(vectors, {"facts": json.dumps(dict(record.facts))}))


def read_record(path: Path) -> Record:
    """Reads what `write_record` wrote; anything else is an input error."""
    try:
        refuse_special_file(path)
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            if not isinstance(facts, dict):
                raise ValueError("its facts have no names")
            names = file.keys()
            return Record({name: file.get_tensor(name) for name in names}, facts)
    except InputError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read: {reason}") from error
