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
    from ipfl.api import Interrupted as Interrupted
    from ipfl.api import compare as compare
    from ipfl.api import run as run
    from ipfl.config.run_config import AdversaryConfig as AdversaryConfig
    from ipfl.config.run_config import ClientsConfig as ClientsConfig
    from ipfl.config.run_config import EvaluateConfig as EvaluateConfig
    from ipfl.config.run_config import FaultsConfig as FaultsConfig
    from ipfl.config.run_config import RunConfig as RunConfig
    from ipfl.config.run_config import StrategyConfig as StrategyConfig
    from ipfl.config.sections import AggregateConfig as AggregateConfig
    from ipfl.config.task_section import TaskConfig as TaskConfig
    from ipfl.config.train_section import PrivacyConfig as PrivacyConfig
    from ipfl.config.train_section import TrainConfig as TrainConfig
    from ipfl.config.whole_config import Config as Config
    from ipfl.core import Method as Method
    from ipfl.data import Dataset as Dataset
    from ipfl.data.own.own_clients import from_clients as from_clients
    from ipfl.engines.local_engine import local_engine as local_engine
    from ipfl.errors import InputError as InputError
    from ipfl.errors import NotSupportedError as NotSupportedError
    from ipfl.keep.run_folder import RunOutput as RunOutput
    from ipfl.methods import method as method
    from ipfl.results.client_model import ClientModel as ClientModel
    from ipfl.results.finished import load as load
    from ipfl.results.model_files import export_model as export_model
    from ipfl.results.result import Observer as Observer
    from ipfl.results.result import Result as Result
    from ipfl.study.comparison import Comparison as Comparison
    from ipfl.study.ray_runs import ray_pool as ray_pool
    from ipfl.training.task import Task as Task

__version__ = "0.1.0"

_HOME = {
    "AdversaryConfig": "config.run_config",
    "AggregateConfig": "config.sections",
    "ClientModel": "results.client_model",
    "ClientsConfig": "config.run_config",
    "Comparison": "study.comparison",
    "Config": "config.whole_config",
    "Dataset": "data",
    "EvaluateConfig": "config.run_config",
    "FaultsConfig": "config.run_config",
    "InputError": "errors",
    "Interrupted": "api",
    "Method": "core",
    "NotSupportedError": "errors",
    "Observer": "results.result",
    "PrivacyConfig": "config.train_section",
    "Result": "results.result",
    "RunConfig": "config.run_config",
    "RunOutput": "keep.run_folder",
    "StrategyConfig": "config.run_config",
    "Task": "training.task",
    "TaskConfig": "config.task_section",
    "TrainConfig": "config.train_section",
    "compare": "api",
    "export_model": "results.model_files",
    "from_clients": "data.own.own_clients",
    "load": "results.finished",
    "local_engine": "engines.local_engine",
    "method": "methods",
    "ray_pool": "study.ray_runs",
    "run": "api",
}
"""Name → module that defines it."""

# Type checkers and editors do not read this: what they may offer is imported above under its own name.
__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ipfl' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ipfl.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
