"""Flower as an engine: the same methods on simulated (Ray) and on deployed nodes.

- `headers`, `run_settings`: what server and nodes say to each other
- `messages`: how that is written as Flower messages, and read
- `server`: the engine, which turns asks into messages and replies into records
- `membership`, `transport`: which nodes take part, and how messages reach them
- `client`: the ClientApp that runs on a node
- `memory`: what server and nodes keep between messages
- `simulation`: nodes on this machine, played by Ray
- `flwr_internals`: all that we use of Flower beyond its public interface

The package imports nothing of `ipfl.deploy`. flwr and Ray are optional (`pip install
"ipfl[flower]"`); their telemetry is switched off here, before either is imported.
"""

from __future__ import annotations

import importlib.util
import os

from ipfl.errors import InputError

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read once, when flwr is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def require_flower(*, simulation: bool = False) -> None:
    """Checks that Flower is installed, before an import fails with a traceback.

    Raises:
        InputError: It is not; the message names the extra to install.
    """
    for module in ("flwr", "ray") if simulation else ("flwr",):
        if importlib.util.find_spec(module) is None:
            raise InputError(f'{module} is not installed; install the extra with: pip install "ipfl[flower]"')
