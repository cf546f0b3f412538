"""Flower as an engine: the same method files on simulated (Ray) and on deployed nodes.

An ask becomes Flower messages, replies become records, and nothing else happens here. flwr and Ray are
optional (`pip install "ipfl[flower]"`); both are told to send nothing home before they are imported.
"""

from __future__ import annotations

import importlib.util
import os

from ipfl.errors import InputError

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read once, when flwr is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def require_flower(*, simulation: bool = False) -> None:
    """Says which extra is missing, before an import fails with a traceback."""
    for module in ("flwr", "ray") if simulation else ("flwr",):
        if importlib.util.find_spec(module) is None:
            raise InputError(f'{module} is not installed; install the extra with: pip install "ipfl[flower]"')
