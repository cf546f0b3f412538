"""Modules that take long to import: each worker collects all test files, and only one or two need them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A module that is imported when something of it is first used.

    Args:
        name: Its full name.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # asked for while tests are collected
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
