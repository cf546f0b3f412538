"""Incentivized and personalized federated learning: build a task, pick a method, run it, look at the result.

    task = ipfl.Task.load(dataset="digits", partition="10:90", clients=20)
    result = ipfl.run(task, ipfl.method(name), ipfl.RunConfig(rounds=10))
    print(result.personalized_accuracy)

Everything here is imported when it is first used, so that `import ipfl` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipfl.client.settings import TrainConfig
    from ipfl.client.task import Task
    from ipfl.core.sections import AggregateConfig
    from ipfl.data.settings import TaskConfig
    from ipfl.engines.local import local_engine
    from ipfl.errors import InputError
    from ipfl.methods import method
    from ipfl.runs.comparison import Comparison, compare
    from ipfl.runs.config import ClientsConfig, Config, EvaluateConfig, RunConfig
    from ipfl.runs.folder import RunOutput
    from ipfl.runs.result import Result
    from ipfl.runs.run import run
    from ipfl.stress.settings import AdversaryConfig, FaultsConfig

__version__ = "0.1.0"

_HOME = {
    "AdversaryConfig": "stress.settings",
    "AggregateConfig": "core.sections",
    "ClientsConfig": "runs.config",
    "Comparison": "runs.comparison",
    "Config": "runs.config",
    "EvaluateConfig": "runs.config",
    "FaultsConfig": "stress.settings",
    "InputError": "errors",
    "Result": "runs.result",
    "RunConfig": "runs.config",
    "RunOutput": "runs.folder",
    "Task": "client.task",
    "TaskConfig": "data.settings",
    "TrainConfig": "client.settings",
    "compare": "runs.comparison",
    "local_engine": "engines.local",
    "method": "methods",
    "run": "runs.run",
}
"""Name → module that defines it."""

__all__ = [
    "AdversaryConfig",
    "AggregateConfig",
    "ClientsConfig",
    "Comparison",
    "Config",
    "EvaluateConfig",
    "FaultsConfig",
    "InputError",
    "Result",
    "RunConfig",
    "RunOutput",
    "Task",
    "TaskConfig",
    "TrainConfig",
    "__version__",
    "compare",
    "local_engine",
    "method",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ipfl' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ipfl.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
