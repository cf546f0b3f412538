"""Incentivized and personalized federated learning: build a task, pick a method, run it, look at the result.

    task = ipfl.Task.load(dataset="digits", partition="10:90", clients=20)
    result = ipfl.run(task, ipfl.method(name), rounds=10)
    print(result.personalized_accuracy)

Everything here is imported when it is first used, so that `import ipfl` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipfl.comparison import Comparison, compare
    from ipfl.config import ClientsConfig, Config, EvaluateConfig, TaskConfig, TrainConfig, method
    from ipfl.errors import InputError
    from ipfl.loop import Result, run
    from ipfl.task import Task

__version__ = "0.1.0"

__all__ = [
    "ClientsConfig",
    "Comparison",
    "Config",
    "EvaluateConfig",
    "InputError",
    "Result",
    "Task",
    "TaskConfig",
    "TrainConfig",
    "__version__",
    "compare",
    "method",
    "run",
]

_HOME = {
    "ClientsConfig": "config",
    "Comparison": "comparison",
    "Config": "config",
    "EvaluateConfig": "config",
    "InputError": "errors",
    "Result": "loop",
    "Task": "task",
    "TaskConfig": "config",
    "TrainConfig": "config",
    "compare": "comparison",
    "method": "config",
    "run": "loop",
}
"""Name → module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ipfl' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ipfl.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
