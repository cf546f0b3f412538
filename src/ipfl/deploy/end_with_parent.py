"""Runs a command that ends when the process that started it ends, even by SIGKILL.

    python -m ipfl.deploy.end_with_parent COMMAND…

Standard input must be a pipe from the parent, which never writes to it. When the parent ends, the operating
system closes the pipe, and this process kills its whole process group. It imports only the standard library,
because one such process runs beside each process of a federation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def _kill_group_when_parent_ends() -> None:
    while os.read(0, 1):  # blocks; returns b"" when the pipe is closed
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(command: list[str]) -> int:
    """Runs the command in this process group, and returns its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    # Signals go to the whole group: the command handles them, and this process ends after it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_kill_group_when_parent_ends, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
