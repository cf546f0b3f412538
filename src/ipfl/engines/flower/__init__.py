"""Flower as an engine: the same methods on nodes in this process and on deployed nodes.

- `message_headers`, `run_settings`: what server and nodes say to each other
- `messages`: how that is written as Flower messages, and read
- `flower_engine`: the engine, which turns asks into messages and replies into records
- `node_directory`, `transport`: which nodes take part, and how messages reach them
- `node_app`: the ClientApp that runs on a node
- `node_limits`, `account_statements`: what a node insists on, and what it keeps as proof
- `node_memory`: what server and nodes keep between messages
- `simulation`: nodes in this process
- `flwr_internals`: all that we use of Flower beyond its public interface

The package imports nothing of `ipfl.deploy`. flwr is optional (`pip install
"ipfl[flower]"`); its telemetry is switched off here, before it is imported.
"""

from __future__ import annotations

import importlib.util
import os

from ipfl.errors import InputError

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read once, when flwr is imported


def require_flower() -> None:
    """Checks that Flower is installed, before an import fails with a traceback.

    Raises:
        InputError: It is not; the message names the extra to install.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError('flwr is not installed; install the extra with: pip install "ipfl[flower]"')
