"""One fixed text for every content, and its hash: equal contents give equal hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(content: Any) -> str:
    """JSON in one fixed form: equal contents give equal text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(content: Any) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()
