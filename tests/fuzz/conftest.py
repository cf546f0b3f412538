"""Fuzz tests look methods up thousands of times: what is installed is searched once, not for each input."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from ipfl import methods


@pytest.fixture(autouse=True, scope="module")
def installed_methods() -> Iterator[None]:
    """Remembers the entry points of installed packages; reading them takes 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "entry_points", cache(methods.entry_points))
        yield
