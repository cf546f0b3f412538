"""Runs Flower's command `flower-superexec`, and keeps the tokens of its tasks off their command lines.

    python -m ipfl.deploy.superexec_process OPTIONS-OF-FLOWER-SUPEREXEC…

A SuperExec starts the ServerApp of a run with `--token TOKEN`. Every user of the machine can read that in the
list of processes, and the token is all that a ServerApp has to prove who it is. Here it is in a file without
a name, which only the new process has open.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def start_task(arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command of Flower's, with `--token-file` instead of `--token`."""
    position = arguments.index("--token")
    with tempfile.TemporaryFile() as file:
        file.write(arguments[position + 1].encode())
        file.flush()
        file.seek(0)
        hidden = ["--token-file", f"/dev/fd/{file.fileno()}"]
        command = [*arguments[:position], *hidden, *arguments[position + 2 :]]
        return subprocess.Popen(command, pass_fds=(file.fileno(),), **options)


def main(options: list[str]) -> None:
    """Runs the command with these options."""
    executor: Any = import_module("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=start_task, DEVNULL=subprocess.DEVNULL)
    from flwr.supercore.cli.flower_superexec import flower_superexec

    sys.argv = ["flower-superexec", *options]
    flower_superexec()


if __name__ == "__main__":
    main(sys.argv[1:])
