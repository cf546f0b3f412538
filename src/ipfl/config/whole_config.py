"""A whole run as one config: read from a TOML file, changed by single settings, its methods built.

An empty file is the default run.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ConfigDict, Field, model_validator

from ipfl import methods
from ipfl.config.run_config import ADAPTED, RunConfig
from ipfl.config.sections import Section
from ipfl.config.task_section import TaskConfig
from ipfl.config.train_section import AdaptConfig
from ipfl.errors import InputError, unknown
from ipfl.system.plugins import look_beside

if TYPE_CHECKING:
    from ipfl.core import Method


class MethodConfig(Section):
    """Which method runs, and its hyper-parameters (`ipfl methods NAME` lists them)."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(methods.DEFAULT, description="see `ipfl methods`; or `module:Class` of your own")
    clusters: int = Field(2, ge=1, description="number of clusters K; ignored by methods without clusters")


class Config(RunConfig):
    """A whole run: what is learned, by which method, and how it is run."""

    task: TaskConfig = Field(default_factory=TaskConfig)
    method: MethodConfig = Field(default_factory=MethodConfig)

    @model_validator(mode="after")
    def _method_with_its_last_step(self) -> Self:
        """`name = "fedavg+adapt"` is FedAvg with `[adapt]` turned on."""
        if self.method.name.endswith(ADAPTED):
            method = self.method.model_copy(update={"name": self.method.name.removesuffix(ADAPTED)})
            object.__setattr__(self, "method", method)  # the section is frozen from now on
            object.__setattr__(self, "adapt", self.adapt.on())
        return self

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        sets: Sequence[str] = (),
        overrides: Mapping[str, Any] | None = None,
    ) -> Config:
        """Reads a TOML file, or starts from the defaults, and changes single fields.

        Args:
            path: The file; None for the default run.
            sets: `section.field=value` each, the value in TOML or plain text.
            overrides: The same as dotted key → value; the last word.

        Raises:
            InputError: What is wrong, on one line, with the dotted key.
        """
        tree = {} if path is None else _read(Path(path))
        if path is not None:
            look_beside(Path(path))
            _find_data_beside(Path(path), tree)
        for key, value in [*map(_assignment, sets), *(overrides or {}).items()]:
            _put(tree, key, value)
        _refuse_bare_hyperparameters(tree)
        return cls.of(tree)

    def build_method(self, name: str | None = None) -> Method[Any]:
        """The method of this config, or another with the same settings; each key must be one of its own."""
        name = name or self.method.name
        return self.build_methods([name])[name]

    def build_methods(self, labels: Iterable[str]) -> dict[str, Method[Any]]:
        """Several methods: a key goes to each that has it, and must belong to at least one.

        A label is a method's name (or `module:Class`), with `+adapt` for the last step (`last_steps`) and
        settings of its own if wanted: `NAME+adapt:key=value:key=value`.
        """
        parsed = {label: _variant(label) for label in labels}
        fields = {label: methods.method_fields(name) for label, (name, _) in parsed.items()}
        known = {field for own in fields.values() for field in own}
        parts = {part for name, _ in parsed.values() for part in methods.parts_of(methods.method_class(name))}
        settings = methods.flat_hyperparameters(self.method.model_extra or {}, parts)
        for key in settings:
            if key not in known:
                raise unknown(
                    "key", f"method.{key}", [f"method.{field}" for field in known | {"name", "clusters"}]
                )
        shared = {"clusters": self.method.clusters, **settings}
        built = {}
        for label, (name, own) in parsed.items():
            fitting = {key: value for key, value in shared.items() if key in fields[label]}
            built[label] = methods.method(name, **(fitting | own))
        return built


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise InputError(f"config {path} is not a file")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"config {path} is not a text file in UTF-8") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, or too many brackets
        raise InputError(f"config {path} is not valid TOML: {error}") from error


def _find_data_beside(config: Path, tree: dict[str, Any]) -> None:
    """Makes `task.path` name a file beside the config, if it is there and not in the current folder."""
    task = tree.get("task")
    given = task.get("path") if isinstance(task, dict) else None
    if not isinstance(given, str):
        return
    try:
        beside = config.resolve().parent / given
        if not Path(given).expanduser().exists() and beside.exists():
            tree["task"] = {**tree["task"], "path": str(beside)}
    except (OSError, ValueError, RuntimeError):  # no path at all: the reader of the data says so
        return


def _assignment(text: str) -> tuple[str, Any]:
    """Splits `task.partition=30:70`; a value that is not TOML is taken as text."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value or not all(key.split(".")):
        raise InputError(f"setting {text!r}: expected section.field=value, such as task.clients=40")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # also a number of thousands of digits, or too many brackets
        return key, value
    # TOML 1.1 reads 10:30 as a time of day; here it is a partition.
    return key, value if isinstance(parsed, datetime.time | datetime.date) else parsed


def method_name(label: str) -> str:
    """The name (or `module:Class`) in a label `NAME+adapt:key=value:key=value`."""
    return _variant(label)[0]


def last_steps(section: AdaptConfig, labels: Iterable[str]) -> dict[str, AdaptConfig]:
    """The section `[adapt]` of every row of a list of methods.

    It belongs to all of them; or, if some end with `+adapt`, to these alone: turned on there, off elsewhere.
    """
    labels = list(labels)
    adapted = {label for label in labels if _name_and_settings(label)[0].endswith(ADAPTED)}
    if not adapted:
        return dict.fromkeys(labels, section)
    return {label: section.on() if label in adapted else AdaptConfig() for label in labels}


def _variant(label: str) -> tuple[str, dict[str, Any]]:
    """The name (or `module:Class`) of a label without `+adapt`, and its own settings."""
    name, settings = _name_and_settings(label)
    return name.removesuffix(ADAPTED), dict(map(_assignment, settings))


def _name_and_settings(label: str) -> tuple[str, list[str]]:
    """Splits `NAME:key=value:key=value`; the name may be `module:Class`."""
    parts = label.split(":")
    own = next((n for n, part in enumerate(parts) if "=" in part), len(parts))
    return ":".join(parts[:own]), parts[own:]


def _refuse_bare_hyperparameters(tree: Mapping[str, Any]) -> None:
    """Says where a hyper-parameter of the chosen method belongs, if its section was forgotten."""
    strange = [key for key in tree if key not in Config.model_fields]
    chosen = tree.get("method")
    name = str(chosen.get("name", methods.DEFAULT) if isinstance(chosen, dict) else methods.DEFAULT)
    name = name.removesuffix(ADAPTED)
    if strange and name in methods.METHODS:
        for key in strange:
            for field in methods.method_fields(name):
                if key in (field, field.rpartition(".")[2]) or key == field.partition(".")[0]:
                    raise InputError(f"unknown key {key!r}; did you mean 'method.{field}'?")


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for depth, section in enumerate(sections, 1):
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"cannot set {key}: {'.'.join(sections[:depth])} is not a section")
    tree[last] = value
