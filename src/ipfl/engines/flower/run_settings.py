"""What a node must know of a run: method, training, task and privacy, as the server sends them first."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ipfl.config.task_section import TaskConfig
from ipfl.config.train_section import AdaptConfig, PrivacyConfig, TrainConfig
from ipfl.core import Method
from ipfl.errors import InputError
from ipfl.methods import method as build_method
from ipfl.methods import method_settings

MAX_CLASSES = 2**16
"""Of a task: more is a mistake or an attack, as the last layer of every model grows with it."""


SECTIONS: dict[str, Any] = {
    "train": TrainConfig,
    "task": TaskConfig,
    "privacy": PrivacyConfig,
    "adapt": AdaptConfig,
}


@dataclass(frozen=True)
class RunSettings:
    """What a node must know to take part in a run; it travels as JSON, so a node needs no config file."""

    method: Method[Any]
    train: TrainConfig
    task: TaskConfig
    seed: int
    classes: int | None
    """Number of classes; None as long as the server has to learn it from its nodes."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    """What replies may reveal."""
    adapt: AdaptConfig = field(default_factory=AdaptConfig)
    """The last step at the clients."""

    def to_json(self) -> str:
        """The text that travels."""
        sections = {name: getattr(self, name).model_dump(mode="json") for name in SECTIONS}
        other = {"method": method_settings(self.method), "seed": self.seed, "classes": self.classes}
        return json.dumps(sections | other)

    @classmethod
    def from_json(cls, text: str) -> RunSettings:
        """Reads the text that travelled.

        Raises:
            InputError: This node cannot use the settings; perhaps it has another version of ipfl.
        """
        try:
            content = json.loads(text)
            hyper_parameters = dict(content["method"])
            return cls(
                method=build_method(hyper_parameters.pop("name"), **hyper_parameters),
                seed=int(content["seed"]),
                classes=_read_classes(content["classes"]),
                **{name: section.of(content[name]) for name, section in SECTIONS.items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"the server's settings cannot be read: {error}") from error


def _read_classes(value: Any) -> int | None:
    """The number of classes that a server sends; a node builds a model for so many."""
    if value is not None and not 1 <= int(value) <= MAX_CLASSES:
        raise ValueError(f"{value!r:.50} classes, {MAX_CLASSES} at most are possible")
    return None if value is None else int(value)
