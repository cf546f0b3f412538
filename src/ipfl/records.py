"""Records on disk: a safetensors file with the vectors, the facts as JSON in its header. Never a pickle."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ipfl.core import Record
from ipfl.errors import InputError


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Inside, what the system said is raised as such: safetensors hides it in an error of its own."""
    try:
        yield
    except SafetensorError as error:
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
        raise


def write_record(path: Path, record: Record) -> None:
    """Writes the record whole or not at all."""
    draft = path.with_suffix(".draft")
    # safetensors writes the memory of a strided view as it lies there, without a word.
    vectors = {name: np.ascontiguousarray(vector) for name, vector in record.params.items()}
    try:
        with system_errors(path):
            save_file(vectors, draft, metadata={"facts": json.dumps(dict(record.facts))})
        os.replace(draft, path)
    except OSError:  # half a file would only take up room
        draft.unlink(missing_ok=True)
        raise


def read_record(path: Path) -> Record:
    """Reads what `write_record` wrote; anything else is an input error."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            if not isinstance(facts, dict):
                raise ValueError("its facts have no names")
            names = file.keys()
            return Record({name: file.get_tensor(name) for name in names}, facts)
    except (SafetensorError, OSError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} cannot be read: {reason}") from error
