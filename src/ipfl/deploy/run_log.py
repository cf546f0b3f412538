"""The lines that a run prints on the server, and how `ipfl deploy run` recognises them in the run's log.

The log of a ServerApp also contains Flower's own lines and tracebacks. Therefore each line of ours is a
prefix and a JSON object if the process was started by `ipfl deploy server`, which sets FORMAT_VARIABLE.
Otherwise (simulation, or `flwr run` with an app of your own) people read the output, and it is plain text.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum

FORMAT_VARIABLE = "IPFL_RUN_LOG_FORMAT"
"""Environment variable that chooses the format; any other value than JSON_FORMAT means plain text."""
JSON_FORMAT = "json"
PREFIX = "ipfl-run-log: "


class EntryKind(StrEnum):
    """What a line is."""

    PROGRESS = "progress"
    INPUT_ERROR = "input-error"
    """The run fails because of its input; the text says why."""
    FAILURE = "failure"
    """The run came to its end, and was for nothing; the text says why."""


@dataclass(frozen=True)
class LogEntry:
    """One line for the user."""

    kind: EntryKind
    text: str

    def encode(self) -> str:
        """The entry as one line of ASCII, without the line end."""
        return PREFIX + json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> LogEntry | None:
        """The entry of a line; None if the line is not one of ours."""
        if not line.startswith(PREFIX):
            return None
        try:
            content = json.loads(line.removeprefix(PREFIX))
            return cls(EntryKind(content["kind"]), str(content["text"]))
        except (ValueError, KeyError, TypeError):
            return None


def print_progress(text: str) -> None:
    """Prints a line about the run."""
    _print(LogEntry(EntryKind.PROGRESS, text), text)


def print_input_error(text: str) -> None:
    """Prints why the run fails because of its input."""
    _print(LogEntry(EntryKind.INPUT_ERROR, text), f"error: {text}")


def print_failure(text: str) -> None:
    """Prints why a run that came to its end has failed."""
    _print(LogEntry(EntryKind.FAILURE, text), f"error: {text}")


def _print(entry: LogEntry, plain: str) -> None:
    line = entry.encode() if os.environ.get(FORMAT_VARIABLE) == JSON_FORMAT else plain
    # One write, not `print`: a line of another thread must not come between the text and its line end.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
