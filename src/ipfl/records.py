"""Records on disk: a safetensors file with the vectors, the facts as JSON in its header. Never a pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ipfl.core import Record
from ipfl.errors import InputError


def write_record(path: Path, record: Record) -> None:
    """Writes the record whole or not at all."""
    draft = path.with_suffix(".draft")
    # safetensors writes the memory of a strided view as it lies there, without a word.
    vectors = {name: np.ascontiguousarray(vector) for name, vector in record.params.items()}
    save_file(vectors, draft, metadata={"facts": json.dumps(dict(record.facts))})
    os.replace(draft, path)


def read_record(path: Path) -> Record:
    """Reads what `write_record` wrote; anything else is an input error."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            names = file.keys()
            return Record({name: file.get_tensor(name) for name in names}, facts)
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
