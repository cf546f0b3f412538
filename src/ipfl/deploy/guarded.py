"""Runs a command that ends with whoever started it, even if that one was killed without a word.

    python -m ipfl.deploy.guarded COMMAND…     with a pipe for standard input, which its owner never writes to

When the owner is gone, the pipe ends, and so does the whole process group. Nothing is imported but Python's
own modules: one of these sits beside every process of a federation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def _end_with_owner() -> None:
    while os.read(0, 1):  # nobody writes; it returns when the last copy of the other end is closed
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(command: list[str]) -> int:
    """Runs the command in this process group; its exit code is ours."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    # The group is signalled as a whole: the command decides how it ends, and we end after it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
