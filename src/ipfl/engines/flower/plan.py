"""What a node must know to play its part: method, training, seed, and how to find data and model.

The server writes it once as a JSON text and sends it with its first message; a node needs no config file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ipfl.client.settings import TrainConfig
from ipfl.core import Method
from ipfl.data.settings import TaskConfig
from ipfl.errors import InputError
from ipfl.methods import method as build_method
from ipfl.methods import method_settings


@dataclass(frozen=True)
class Plan:
    """The server's side of a run, as its nodes see it."""

    method: Method[Any]
    train: TrainConfig
    task: TaskConfig
    seed: int
    classes: int | None
    """Number of classes; None as long as the server has to learn it from its nodes."""

    def text(self) -> str:
        """What travels."""
        return json.dumps(
            {
                "method": method_settings(self.method),
                "train": self.train.model_dump(mode="json"),
                "task": self.task.model_dump(mode="json"),
                "seed": self.seed,
                "classes": self.classes,
            }
        )

    @classmethod
    def of(cls, text: str) -> Plan:
        """Reads what travelled.

        Raises:
            InputError: This node cannot do what the server wants; perhaps it has another version of ipfl.
        """
        try:
            said = json.loads(text)
            settings = dict(said["method"])
            return cls(
                method=build_method(settings.pop("name"), **settings),
                train=TrainConfig.of(said["train"]),
                task=TaskConfig.of(said["task"]),
                seed=int(said["seed"]),
                classes=None if said["classes"] is None else int(said["classes"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the server's settings cannot be read: {error}") from error
