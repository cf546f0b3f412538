"""The lines that a run prints on the server, and how `ipfl deploy run` recognises them in the run's log.

The log of a ServerApp also has Flower's own lines and tracebacks: ours begin with a word of their own.
"""

from __future__ import annotations

import sys
from enum import StrEnum


class LineKind(StrEnum):
    """The beginnings of lines, by kind."""

    PROGRESS = "ipfl: "
    INPUT_ERROR = "ipfl: error: "
    """The run fails because of its input; the text says why."""
    FAILURE = "ipfl: failed: "
    """The run came to its end, and was for nothing; the text says why."""


def print_line(text: str, kind: LineKind = LineKind.PROGRESS) -> None:
    """Prints a line about the run."""
    # One write, not `print`: a line of another thread must not come between the text and its line end.
    sys.stdout.write(f"{kind}{' '.join(text.splitlines())}\n")
    sys.stdout.flush()


def read_line(line: str) -> tuple[LineKind, str] | None:
    """The kind and the text of a line; None if the line is not one of ours."""
    for kind in (LineKind.INPUT_ERROR, LineKind.FAILURE, LineKind.PROGRESS):
        if line.startswith(kind):
            return kind, line.removeprefix(kind)
    return None
