"""Files that are written whole or not at all: text, JSON, and records. Never a pickle.

A record on disk is a safetensors file with the vectors, and the facts as JSON in its header.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ipfl.core.records import Record
from ipfl.errors import InputError

DRAFT_SUFFIX = ".draft"
"""Of a file that is being written; it gets its name when it is complete."""
RECORD_SUFFIX = ".safetensors"
"""Of the files that `write_record` writes."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a draft to write to, which takes the place of `path` at the end; removed if anything fails."""
    draft = path.with_suffix(f".{os.getpid()}{DRAFT_SUFFIX}")
    try:
        yield draft
        os.replace(draft, path)
    except OSError:  # half a file would only take up space
        draft.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_record(path: Path, record: Record) -> None:
    """Writes a record whole or not at all."""
    # safetensors writes the memory of a strided view as it lies there.
    vectors = {name: np.ascontiguousarray(vector) for name, vector in record.params.items()}
    with atomic_write(path) as draft, system_errors(path):
        save_file(vectors, draft, metadata={"facts": json.dumps(dict(record.facts))})


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


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Inside, an error of the system is raised as OSError: safetensors hides it in an error of its own."""
    try:
        yield
    except SafetensorError as error:
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
        raise
