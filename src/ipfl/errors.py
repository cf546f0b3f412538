"""The exception for what a user can correct: the command line prints it on one line, with exit code 2."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Bad input from outside: a config, a file, an argument. The message says what to change."""

    keyword, option = "", ""
    """Of the message: what Python users would write, and what stands for it on the command line."""


class NotSupportedError(InputError):
    """A method does not offer what was asked of it, such as a model for clients it has never met."""


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """Builds the error for a name that does not exist: the nearest known one, and all there are."""
    names = sorted(known)
    return InputError(f"unknown {what} {name!r}{near_hint(name, names)} (known: {', '.join(names)})")


def near_hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: the nearest one, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def require_extra(module: str, extra: str) -> Any:
    """Imports a module of an extra.

    Raises:
        InputError: It is not installed; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        how = f'pip install "ipfl[{extra}]"'
        package = module.partition(".")[0]
        raise InputError(f"{package} is not installed; install the extra with: {how}") from error
