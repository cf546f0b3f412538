"""Experiments: TOML files with their task, methods, columns and printed numbers.

The files lie in `experiments/paper/` of the source tree, and in the installed package. `common.toml` holds
what they share: tasks at every scale, the grid that methods are tuned on, what the paper calls the methods.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ipfl.config.sections import one_line
from ipfl.errors import InputError, unknown

Scale = Literal["smoke", "cpu", "paper"]
COMMON = "common"
Settings = dict[str, Any]
"""Dotted keys of a config, such as `task.partition`, and their values."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Scaled(_File):
    """Settings for all scales, and for each."""

    config: Settings = {}
    smoke: Settings = {}
    cpu: Settings = {}
    paper: Settings = {}
    differs: str = ""
    """The difference of the scale cpu from the paper; of an experiment, if not as its task says."""

    def settings(self, scale: Scale) -> Settings:
        """All settings at a scale."""
        return {**self.config, **{"smoke": self.smoke, "cpu": self.cpu, "paper": self.paper}[scale]}


class MainParameter(_File):
    """The one parameter that a method is tuned by, beside the learning rate."""

    key: str
    """Of the method, or dotted: of the config."""
    values: Annotated[tuple[Any, ...], Field(min_length=1)]


class Grid(_File):
    """The grid that every method is tuned on."""

    lr_factors: Annotated[tuple[float, ...], Field(min_length=1)]
    """Multiples of the task's learning rate."""
    rounds_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Runs of the grid have this share of the rounds."""
    main: Mapping[str, MainParameter]
    """By the label of the method. Variants that are not here are tuned with what they are variants of."""


class Common(_File):
    """The part that experiments share."""

    tasks: Mapping[str, _Scaled]
    grid: Grid
    names: Mapping[str, str]
    """The paper's names of methods, by label."""
    settings: Mapping[str, Settings] = {}
    """Settings of single methods, by label; keys without a dot are the method's own."""
    introduction: str
    """The text before all tables."""
    retired: tuple[str, ...] = ()
    """Labels of rows whose settings no longer exist: shown, and compared with nothing."""
    order: tuple[str, ...] = ()
    """In which experiments are listed."""


class Experiment(_Scaled):
    """One table or figure of the paper."""

    name: str
    title: str
    place: str
    """Its place in the paper."""
    claim: str = ""
    """The paper's claim; empty if the paper does not show it."""
    task: str
    columns: Mapping[str, Settings] = {"": {}}
    """Variants of the task by name; each is a table of its own."""
    ours: tuple[str, ...] = ()
    """The methods whose rank is told, the first of them most of all."""
    methods: tuple[str, ...] = ()
    """All others, by label."""
    reference: str = ""
    """The one that PMA is measured against."""
    measures: tuple[str, ...] = ("accuracy",)
    figures: tuple[str, ...] = ()
    """Of `ipfl plot`, drawn for each column."""
    tuning: str | None = None
    """The experiment whose tuning is used; None: its own."""
    also_tuned: tuple[str, ...] = ()
    """Methods that only experiments with this one's tuning have."""
    tuned_column: str | None = None
    """The column that methods are tuned in; None: the first."""
    printed: Mapping[str, Mapping[str, Mapping[str, str | float]]] = {}
    """Column → measure → method → what the paper prints."""
    note: str = ""
    """A remark, such as how the text is read."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All methods, the reference included."""
        given = (*self.ours, *self.methods, *([self.reference] if self.reference else []))
        return tuple(dict.fromkeys(given))


def experiments_folder() -> Path:
    """The folder of the experiments' files: in the installed package, or in the source tree."""
    here = Path(__file__).resolve().parent
    installed = here / "paper"
    return installed if installed.is_dir() else here.parents[2] / "experiments" / "paper"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


@cache
def read_common() -> Common:
    """The part that experiments share."""
    path = experiments_folder() / f"{COMMON}.toml"
    try:
        return Common.model_validate(_read_toml(path))
    except ValidationError as error:
        raise InputError(f"{path}: {one_line(error, None)}") from error


def experiment_names() -> list[str]:
    """Names of all experiments, those of the paper's tables first."""
    names = {path.stem for path in experiments_folder().glob("*.toml")} - {COMMON}
    ordered = [name for name in read_common().order if name in names]
    return [*ordered, *sorted(names - {*ordered})]


def read_experiment(name: str) -> Experiment:
    """An experiment by name.

    Raises:
        InputError: There is none, or its file is not as it should be.
    """
    if name not in experiment_names():
        raise unknown("experiment", name, experiment_names())
    path = experiments_folder() / f"{name}.toml"
    try:
        found = Experiment.model_validate({**_read_toml(path), "name": name})
    except ValidationError as error:
        raise InputError(f"{path}: {one_line(error, None)}") from error
    if found.task not in read_common().tasks:
        raise InputError(f"{path}: there is no task {found.task!r} in {COMMON}.toml")
    return found
