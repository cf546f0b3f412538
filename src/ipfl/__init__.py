"""Incentivized and personalized federated learning: build a task, pick a method, run it, look at the result.

    task = ipfl.Task.load(dataset="digits", partition="10:90", clients=20)
    result = ipfl.run(task, ipfl.method(name), rounds=10)
    print(result.personalized_accuracy)

Everything here is imported when it is first used, so that `import ipfl` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipfl.compare import Comparison, compare
    from ipfl.config import ClientsConfig, Config, EvaluateConfig, TaskConfig, TrainConfig, method
    from ipfl.errors import InputError
    from ipfl.run import Result, run
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
    "Comparison": "compare",
    "Config": "config",
    "EvaluateConfig": "config",
    "InputError": "errors",
    "Result": "run",
    "Task": "task",
    "TaskConfig": "config",
    "TrainConfig": "config",
    "compare": "compare",
    "method": "config",
    "run": "run",
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


class _Package(ModuleType):
    """Importing the file `run.py` would make `ipfl.run` that module; here it stays the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
