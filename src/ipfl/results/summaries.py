"""The parts of `summary.json` that reading a run back needs. Imports no torch: a list of runs is quick."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from ipfl.config.sections import one_line
from ipfl.config.task_section import TargetKind
from ipfl.errors import InputError
from ipfl.keep.file_names import SUMMARY_FILE
from ipfl.system.files import read_text

PositiveWhole = Annotated[int, Field(strict=True, ge=1, lt=2**31)]


class _Task(BaseModel):
    model: str


class _Config(BaseModel):
    method: dict[str, Any]
    task: _Task | None = None
    train: dict[str, Any]

    @field_validator("method")
    @classmethod
    def _named(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(settings.get("name"), str):
            raise ValueError("a method needs a name")
        return settings


class _Target(BaseModel):
    """The target; the units of numbers are as many as there are outputs."""

    kind: TargetKind
    outputs: PositiveWhole
    mean: list[float]
    scale: list[Annotated[float, Field(gt=0)]]

    @model_validator(mode="after")
    def _one_unit_per_output(self) -> Self:
        units = self.outputs if self.kind == "regression" else 0
        if len(self.mean) != units or len(self.scale) != units:
            raise ValueError(f"a target of {self.outputs} outputs needs {units} units")
        return self


class _Summary(BaseModel):
    """The parts of a summary that are needed. Whole numbers only: a user's model is called with the shape."""

    config: _Config
    input_shape: Annotated[list[PositiveWhole], Field(min_length=1, max_length=4)]
    input_dtype: Annotated[str, Field(pattern=r"^(u?int(8|16|32|64)|float(16|32|64))$")] | None = None
    classes: PositiveWhole
    class_names: list[str] | None = None
    client_names: dict[str, str] | None = None
    model: str | None = None
    target: _Target | None = None
    tokens: PositiveWhole | None = None
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)]
    data_seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] | None = None
    rounds: Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class _MeanStd(BaseModel):
    mean: float
    std: float


WholeNumber = Annotated[int, Field(ge=0)]


class ShownSummary(_Summary):
    """The parts that tables, figures and pages show as well."""

    method: str
    dataset: str
    partition: str
    clients: WholeNumber
    seconds: float
    bytes_up: WholeNumber
    bytes_down: WholeNumber
    clusters: int | None
    personalized_accuracy: _MeanStd | None
    global_accuracy: _MeanStd | None
    unseen_accuracy: _MeanStd | None
    pma: _MeanStd | None
    opt_outs: int | None
    participation_rate: float | None
    purity: float | None
    left: WholeNumber
    cluster_accuracy: list[list[float]] | None
    report: dict[str, Any]


def read_summary(folder: Path, needed: type[_Summary] = _Summary) -> dict[str, Any]:
    """The summary of a run that ended.

    Args:
        folder: Of the run.
        needed: The parts that are checked; all others are given as they are.

    Raises:
        InputError: There is none, or it is not one.
    """
    try:
        summary = json.loads(read_text(folder / SUMMARY_FILE))
        needed.model_validate(summary)
    except OSError as error:
        raise InputError(f"{folder} holds no finished run: {error.strerror}: {error.filename}") from error
    except (ValueError, RecursionError) as error:
        reason = one_line(error, None) if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{folder / SUMMARY_FILE} is not the summary of a run: {' '.join(reason.split())}"
        ) from error
    return dict(summary)


def mean_of(figure: Any) -> Any:
    """The mean of `{mean, std}`; any other figure as it is."""
    return figure["mean"] if isinstance(figure, Mapping) else figure
