"""A run on a deployed federation: handed to the SuperLink, followed until its end, stopped at Ctrl-C."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ipfl.deploy.folder import PROFILE, ServerFolder
from ipfl.deploy.server import Say, flwr, follow
from ipfl.errors import InputError
from ipfl.report.settings import toml_value

NOISE = re.compile(r"\s*$|(\x1b\[\d+m)?(INFO|DEBUG|WARNING)\b|Successfully installed |Using SuperLink|[╭│╰]")
"""Flower's own lines in the log of a run; the rest is what our server prints."""
ERROR = "error: "
COMPLETED = "finished:completed"

RunValue = str | int | float | bool


class RunFailedError(RuntimeError):
    """A run ended before its last round, and not because of bad input."""


def run(folder: ServerFolder, settings: Mapping[str, RunValue], say: Say) -> None:
    """Starts a run, shows what it prints, and returns when it is over.

    Args:
        folder: The federation; its SuperLink runs.
        settings: What the app's `[tool.flwr.app.config]` knows.
        say: Told every line.

    Raises:
        InputError: The run ended with a line that begins with `error: `.
        RunFailedError: It ended in another way than with its last round.
    """
    words = " ".join(f"{key}={toml_value(value)}" for key, value in settings.items())
    answer = flwr(folder, "run", str(folder.app), PROFILE, "--run-config", words)
    if not answer.get("success"):
        raise RunFailedError(f"Flower did not start the run: {answer.get('error-message')}")
    number = str(answer["run-id"])
    mistake, last = "", ""
    try:
        for line in follow(folder, number):
            if NOISE.match(line):
                continue
            last = line
            if line.startswith(ERROR):
                mistake = line.removeprefix(ERROR)
            elif not mistake:  # what follows a mistake is the traceback of how it was found
                say(line)
        status, details = _status(folder, number)
    except BaseException:
        with suppress(RuntimeError):
            flwr(folder, "stop", number, PROFILE)
        raise
    if mistake:
        raise InputError(mistake)
    if status != COMPLETED:
        raise RunFailedError(f"the run ended as {status} ({details}); its last line: {last or 'none'}")


def newest(runs: Path) -> Path:
    """A folder for the next run: run-1, run-2 and so on."""
    number = 1
    while (runs / f"run-{number}").exists():
        number += 1
    return runs / f"run-{number}"


def _status(folder: ServerFolder, number: str) -> tuple[str, str]:
    """How a run ended, in Flower's words."""
    found = flwr(folder, "list", PROFILE, "--run-id", number).get("runs")
    if not found:
        raise RunFailedError("the server does not answer any more; start it again, and resume the run")
    return str(found[0].get("status")), str(found[0].get("status-details"))
