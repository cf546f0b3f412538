"""Runs Flower's command `flower-superexec`, and keeps the tokens of its tasks off their command lines.

    python -m ipfl.deploy.server.superexec_process OPTIONS-OF-FLOWER-SUPEREXEC…

A SuperExec starts the ServerApp of a run with `--token TOKEN`. Every user of the machine can read that in the
list of processes, and the token is all that a ServerApp has to prove who it is. Here it is in a file without
a name, which only the new process has open.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any

from ipfl.engines.flower.flwr_internals import run_superexec


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


if __name__ == "__main__":
    run_superexec(sys.argv[1:], start_task)
