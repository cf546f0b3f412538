"""The exception for what a user can correct: the command line prints it on one line, with exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from outside: a config, a file, an argument. The message says what to change."""


class NotSupportedError(InputError):
    """A method does not offer what was asked of it, such as a model for clients it has never met."""


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """Builds the error for a name that does not exist: the nearest known one, and all there are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {name!r}{hint} (known: {', '.join(names)})")
