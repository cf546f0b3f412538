"""One fixed text for every content, and its hash: equal contents give equal hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ipfl.market.bank import TransferRows


def canonical(content: Any) -> str:
    """JSON in one fixed form: equal contents give equal text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: Any) -> str:
    """SHA-256 of the canonical JSON; that of a round's transfers is made part by part."""
    hashed = hashlib.sha256()
    for part in _parts(content):
        hashed.update(part.encode())
    return hashed.hexdigest()


def _parts(content: Any) -> Iterator[str]:
    """The canonical JSON of a content in parts."""
    if isinstance(content, Mapping) and all(isinstance(key, str) for key in content):
        for place, key in enumerate(sorted(content)):
            yield ("," if place else "{") + canonical(key) + ":"
            yield from _parts(content[key])
        yield "}" if content else "{}"
    elif isinstance(content, TransferRows):
        for place, rows in enumerate(content.chunks()):
            yield ("," if place else "[") + canonical(rows)[1:-1]
        yield "]" if len(content) else "[]"
    else:
        yield canonical(content)
