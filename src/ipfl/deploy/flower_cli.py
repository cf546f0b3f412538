"""Flower's command line: calls the command `flwr`, and starts, follows and stops runs with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipfl.deploy.federation_folder import PROFILE_NAME, ServerFolder
from ipfl.deploy.run_log import FORMAT_VARIABLE, JSON_FORMAT, EntryKind, LogEntry
from ipfl.engines.flower.flwr_internals import COMPLETED_STATUS, TOKEN_REFUSED_TEXT
from ipfl.errors import InputError
from ipfl.report.config_text import toml_value

MAX_FAILURE_LINES = 40
"""How many lines of Flower's log are shown when a run fails: enough for a traceback."""

PrintLine = Callable[[str], None]
RunValue = str | int | float | bool


class RunFailedError(RuntimeError):
    """A run ended before its last round, or none of its rounds counted, and not because of bad input."""


def flower_environment(home: Path) -> dict[str, str]:
    """Environment variables for Flower's commands: no telemetry, no check for updates, their files in `home`.

    The commands start each other by name, so the folder of this Python is the first in PATH.
    """
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        FORMAT_VARIABLE: JSON_FORMAT,
    }


def command_path(name: str) -> str:
    """Path of a command that is installed in the environment of this Python, independent of PATH."""
    return str(Path(sys.executable).parent / name)


def run_flwr(folder: ServerFolder, *arguments: str) -> dict[str, Any]:
    """Runs a `flwr` command and returns its JSON answer.

    Raises:
        InputError: The server did not accept the operator token.
        RuntimeError: It printed no JSON object.
    """
    done = subprocess.run(
        [command_path("flwr"), *arguments, "--format", "json"],
        env=flower_environment(folder.flower_home),
        cwd=folder.flower_home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if TOKEN_REFUSED_TEXT in done.stdout + done.stderr:
        raise InputError(
            f"the server does not accept the operator token in {folder.flower_home}: run this command on the "
            "server's machine, as its user, with the folder that the server was started with"
        )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        output = " ".join((done.stderr or done.stdout).split())
        raise RuntimeError(f"flwr {' '.join(arguments[:2])} failed: {output[-400:]}") from None
    if not isinstance(answer, dict):
        raise RuntimeError(f"flwr {' '.join(arguments[:2])} answered {answer!r}")
    return answer


def run_and_follow(folder: ServerFolder, settings: Mapping[str, RunValue], print_line: PrintLine) -> None:
    """Starts a run on the running SuperLink, shows its lines, and returns when it has ended.

    Any exception here, also Ctrl-C, stops the run.

    Args:
        folder: The federation's folder.
        settings: Values for the keys in the app's `[tool.flwr.app.config]`.
        print_line: Called with each line of the run.

    Raises:
        InputError: The run failed because of bad input.
        RunFailedError: It failed for another reason, or was stopped.
    """
    run_config = " ".join(f"{key}={toml_value(value)}" for key, value in settings.items())
    answer = run_flwr(folder, "run", str(folder.app), PROFILE_NAME, "--run-config", run_config)
    if not answer.get("success"):
        raise RunFailedError(f"Flower did not start the run: {answer.get('error-message')}")
    run_id = str(answer["run-id"])
    input_error: str | None = None
    failure: str | None = None
    other_lines: deque[str] = deque(maxlen=MAX_FAILURE_LINES)
    try:
        for line in _stream_log(folder, run_id):
            entry = LogEntry.decode(line)
            if entry is None:
                other_lines.append(line)
            elif entry.kind is EntryKind.INPUT_ERROR:
                input_error = entry.text
            elif entry.kind is EntryKind.FAILURE:
                failure = entry.text
            else:
                print_line(entry.text)
        if input_error is None and failure is None:  # the run has not said itself how it ended
            status, details = _run_status(folder, run_id)
    except BaseException:
        with suppress(RuntimeError):
            run_flwr(folder, "stop", run_id, PROFILE_NAME)
        raise
    if input_error is not None:
        raise InputError(input_error)
    if failure is not None:
        raise RunFailedError(failure)
    if status != COMPLETED_STATUS:
        for line in other_lines:  # with the traceback, if there is one
            print_line(line)
        raise RunFailedError(f"the run ended as {status} ({details})")


def _stream_log(folder: ServerFolder, run_id: str) -> Iterator[str]:
    """The lines of a run's log as they appear, until the run has ended."""
    with subprocess.Popen(
        [command_path("flwr"), "log", run_id, PROFILE_NAME, "--stream"],
        env=flower_environment(folder.flower_home),
        cwd=folder.flower_home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C must reach only this process, which stops the run first
    ) as stream:
        assert stream.stdout is not None
        try:
            for line in stream.stdout:
                yield line.rstrip("\n")
        finally:
            with suppress(ProcessLookupError):
                stream.terminate()


def _run_status(folder: ServerFolder, run_id: str) -> tuple[str, str]:
    """Flower's status of a run, and its details."""
    runs = run_flwr(folder, "list", PROFILE_NAME, "--run-id", run_id).get("runs")
    if not runs:
        raise RunFailedError("the server does not answer any more; start it again, and resume the run")
    return str(runs[0].get("status")), str(runs[0].get("status-details"))
