"""Incentivized and personalized federated learning: build a task, pick a method, run it, look at the result.

    task = ipfl.Task.load(dataset="digits", partition="10:90", clients=20)
    result = ipfl.run(task, ipfl.method(name), ipfl.RunConfig(rounds=10))
    print(result.personalized_accuracy)
    result.predict(3, x)    # what client 3 predicts for raw points

Everything here is imported when it is first used, so that `import ipfl` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipfl.api import Interrupted, compare, load, run
    from ipfl.client.client_model import ClientModel
    from ipfl.client.export import export_model
    from ipfl.client.settings import PrivacyConfig, TrainConfig
    from ipfl.client.task import Task
    from ipfl.core import Method
    from ipfl.core.sections import AggregateConfig
    from ipfl.data import Dataset, from_clients
    from ipfl.data.settings import TaskConfig
    from ipfl.engines.local import local_engine
    from ipfl.errors import InputError, NotSupportedError
    from ipfl.methods import method
    from ipfl.runs.comparison import Comparison
    from ipfl.runs.config import ClientsConfig, Config, EvaluateConfig, RunConfig
    from ipfl.runs.folder import RunOutput
    from ipfl.runs.ray_runs import ray_pool
    from ipfl.runs.result import Observer, Result
    from ipfl.stress.settings import AdversaryConfig, FaultsConfig, StrategyConfig

__version__ = "0.1.0"

_HOME = {
    "AdversaryConfig": "stress.settings",
    "AggregateConfig": "core.sections",
    "ClientModel": "client.client_model",
    "ClientsConfig": "runs.config",
    "Comparison": "runs.comparison",
    "Config": "runs.config",
    "Dataset": "data",
    "EvaluateConfig": "runs.config",
    "FaultsConfig": "stress.settings",
    "InputError": "errors",
    "Interrupted": "api",
    "Method": "core",
    "NotSupportedError": "errors",
    "Observer": "runs.result",
    "PrivacyConfig": "client.settings",
    "Result": "runs.result",
    "RunConfig": "runs.config",
    "RunOutput": "runs.folder",
    "StrategyConfig": "stress.settings",
    "Task": "client.task",
    "TaskConfig": "data.settings",
    "TrainConfig": "client.settings",
    "compare": "api",
    "export_model": "client.export",
    "from_clients": "data",
    "load": "api",
    "local_engine": "engines.local",
    "method": "methods",
    "ray_pool": "runs.ray_runs",
    "run": "api",
}
"""Name → module that defines it."""

__all__ = [
    "AdversaryConfig",
    "AggregateConfig",
    "ClientModel",
    "ClientsConfig",
    "Comparison",
    "Config",
    "Dataset",
    "EvaluateConfig",
    "FaultsConfig",
    "InputError",
    "Interrupted",
    "Method",
    "NotSupportedError",
    "Observer",
    "PrivacyConfig",
    "Result",
    "RunConfig",
    "RunOutput",
    "StrategyConfig",
    "Task",
    "TaskConfig",
    "TrainConfig",
    "__version__",
    "compare",
    "export_model",
    "from_clients",
    "load",
    "local_engine",
    "method",
    "ray_pool",
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
