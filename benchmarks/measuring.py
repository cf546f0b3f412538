"""How the benchmarks measure: each in a process of its own; and what the machine was doing meanwhile."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def in_process(module: str, function: str, **arguments: Any) -> dict[str, Any]:
    """What a function of a benchmark returns, called in a fresh process."""
    code = (
        "import importlib, json, sys; "
        "found = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(**json.loads(sys.argv[3])); "
        "print('\\n' + json.dumps(found))"
    )
    command = [sys.executable, "-c", code, module, function, json.dumps(arguments)]
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    surroundings = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=surroundings)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def load() -> float:
    """Processes that wanted a core over the last minute."""
    return round(os.getloadavg()[0], 1)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    found = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in found if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("torch", "numpy", "flwr")},
    }
