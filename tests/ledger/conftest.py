"""Where stores are made."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a new run."""
    return tmp_path / "run"
