"""Runs Flower's command `flower-superlink` on a Unix socket instead of a TCP port.

    python -m ipfl.deploy.server.superlink_process SOCKET OPTIONS-OF-FLOWER-SUPERLINK…

The SuperLink asks operators for nothing. On a TCP port, even of loopback, every user of the machine could run
apps; a Unix socket of mode 0600 can be opened by its user (and root) alone. `ipfl.deploy.server.front` passes
to it what others may send. All files that this process makes, such as the database, are of mode 0600 as well.

flower-superlink has no option for this: it calls `uvicorn.run`, which is replaced here. Should a later
version of Flower not call it any more, then the front finds no socket, and the server does not start.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from ipfl.deploy.processes import PRIVATE_UMASK
from ipfl.engines.flower.flwr_internals import run_superlink


def reserve_socket(path: str) -> None:
    """Makes a socket file of mode 0600; uvicorn opens its own in its place with the same mode."""
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(path)
    os.chmod(path, 0o600)


def serve_on_socket(path: str, app: Any, *, log_config: Any = None) -> None:
    """Serves an ASGI app on a Unix socket until the process is ended."""
    reserve_socket(path)
    uvicorn.Server(uvicorn.Config(app, uds=path, log_config=log_config, access_log=False)).run()


def main(path: str, options: list[str]) -> None:
    """Runs the command with these options."""
    os.umask(PRIVATE_UMASK)

    def run(app: Any, *, log_config: Any = None, **of_tcp_ports: Any) -> None:
        serve_on_socket(path, app, log_config=log_config)

    run_superlink(options, run)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
