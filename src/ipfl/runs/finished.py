"""A finished run, read back from its folder: a personalized model for anyone, without a server.

Anyone with some labelled points and the folder of a run gets the model that the method would give to a new
client: the same `personalize` that clients run, on the offer that the run's server would send.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from safetensors.torch import save_file

from ipfl.client.client import Client
from ipfl.client.models import Factory, Shape, model_factory
from ipfl.client.network import Network, build_network
from ipfl.client.predictors import Mixture, NearestPrototype, Predictor
from ipfl.client.settings import TrainConfig
from ipfl.client.targets import find_loss
from ipfl.client.training import evaluate, one_thread
from ipfl.core import EMPTY, Method, Record
from ipfl.core.files import read_record
from ipfl.core.sections import one_line
from ipfl.data.dataset import check_features, check_targets
from ipfl.data.federated import Parts, Samples
from ipfl.data.targets import Target, TargetKind, count_outputs
from ipfl.errors import InputError
from ipfl.methods import method
from ipfl.runs.folder import OFFER, SUMMARY

MAX_PARAMETERS = 2**26
"""Of a model of ours, if the offer has no vector that shows its size."""

Size = Annotated[int, Field(strict=True, ge=1, lt=2**31)]


class _Task(BaseModel):
    model: str


class _Config(BaseModel):
    method: dict[str, Any]
    task: _Task
    train: dict[str, Any]

    @field_validator("method")
    @classmethod
    def _named(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(settings.get("name"), str):
            raise ValueError("a method needs a name")
        return settings


class _Target(BaseModel):
    """What is predicted; the units of numbers are as many as there are outputs."""

    kind: TargetKind
    outputs: Size
    mean: list[float]
    scale: list[Annotated[float, Field(gt=0)]]

    @model_validator(mode="after")
    def _one_unit_per_output(self) -> Self:
        units = self.outputs if self.kind == "regression" else 0
        if len(self.mean) != units or len(self.scale) != units:
            raise ValueError(f"a target of {self.outputs} outputs needs {units} units")
        return self


class _Summary(BaseModel):
    """What of a summary is needed here. Whole numbers only: a user's model is called with the shape."""

    config: _Config
    input_shape: Annotated[list[Size], Field(min_length=1, max_length=4)]
    classes: Size
    target: _Target | None = None
    tokens: Size | None = None
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)]
    rounds: Annotated[int, Field(strict=True, ge=0, lt=2**31)]


def _read_summary(folder: Path) -> dict[str, Any]:
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        _Summary.model_validate(summary)
    except OSError as error:
        raise InputError(f"{folder} holds no finished run: {error.strerror}: {error.filename}") from error
    except (ValueError, RecursionError) as error:
        reason = one_line(error, None) if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{folder / SUMMARY} is not the summary of a run of `ipfl run`: {' '.join(reason.split())}"
        ) from error
    return dict(summary)


def _target(summary: dict[str, Any]) -> Target:
    """What the run predicted; a class, in summaries that do not say."""
    if (found := summary.get("target")) is None:
        return Target("classes", summary["classes"])
    return Target(found["kind"], found["outputs"], tuple(found["mean"]), tuple(found["scale"]))


def _check_size(path: Path, offer: Record, model: str, factory: Factory, shape: Shape, classes: int) -> None:
    """Refuses a model of ours that is not as large as the offer's vectors, before it takes memory."""
    if ":" in model:
        return  # a user's own code
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in factory(shape, classes).parameters())
    except (RuntimeError, OverflowError, TypeError) as error:
        raise InputError(f"the model {model!r} cannot be made for points of shape {shape}") from error
    sizes = {vector.size for vector in offer.params.values()}
    if sizes - {size} or (size > MAX_PARAMETERS and not sizes):
        raise InputError(f"{path} does not fit the model {model!r} for points of shape {shape}")


@dataclass(frozen=True)
class FinishedRun:
    """What a run left behind for clients that come later."""

    summary: dict[str, Any]
    method: Method[Any]
    offer: Record
    network: Network

    @classmethod
    def open(cls, folder: Path | str) -> FinishedRun:
        """Reads the folder of a run.

        Raises:
            InputError: There is no finished run, or its files do not fit together.
        """
        folder = Path(folder)
        summary = _read_summary(folder)
        settings, model = dict(summary["config"]["method"]), summary["config"]["task"]["model"]
        shape, classes = tuple(summary["input_shape"]), summary["classes"]
        offer = read_record(folder / OFFER)
        factory, target = model_factory(model, summary.get("tokens")), _target(summary)
        _check_size(folder / OFFER, offer, model, factory, shape, classes)
        network = build_network(factory, shape, classes, summary["seed"], target)
        network.loss = find_loss(TrainConfig.of(summary["config"]["train"]).loss, target)
        for name, vector in offer.params.items():
            if vector.shape != (network.size,) or vector.dtype != np.float32:
                raise InputError(f"{folder / OFFER}: {name!r} does not fit the model {model!r}")
        return cls(summary, method(settings.pop("name"), **settings), offer, network)

    def _samples(self, x: NDArray[Any], y: NDArray[Any]) -> Samples:
        shape, classes = self.network.input_shape, int(self.summary["classes"])
        if x.shape[1:] != shape and (*x.shape[1:], 1) == shape:
            x = x[..., None]  # grey images may come without a channel axis
        has_classes = self.network.target.kind == "classes"
        fits = y.shape[:1] == x.shape[:1] and (y.ndim == 1 or not has_classes)
        if not x.ndim or x.shape[1:] != shape or not fits or not y.size:
            raise InputError(
                f"expected points of shape {shape} with a label each, not x {x.shape}, y {y.shape}"
            )
        points = check_features(x, "x")
        classed = check_targets(y, len(x), self.network.target.kind, "y")
        if not has_classes and count_outputs(classed) != classes:
            raise InputError(f"expected {classes} values to predict per point, not {count_outputs(classed)}")
        if has_classes and classed.max() >= classes:
            raise InputError(f"labels must be from 0 to {classes - 1}, not {y.min()} to {y.max()}")
        return Samples(points, classed)

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """The model for a client whose goal is to be good at points like these."""
        goal = self._samples(x, y)
        me = Client(
            id=0,
            round=int(self.summary["rounds"]),
            action="personalize",
            seed=int(self.summary["seed"]),
            classes=int(self.summary["classes"]),
            parts=Parts(goal, goal, goal, goal),
            network=self.network,
            settings=TrainConfig.of(self.summary["config"]["train"]).at_round(int(self.summary["rounds"])),
            initial=self.network.read(),
        )
        try:
            with one_thread():
                predictor: Predictor = self.method.personalize(self.offer, EMPTY, me)
                return predictor
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = " ".join(repr(error).split())
            raise InputError(f"the run's {OFFER} does not fit its method: {reason}") from error

    def accuracy(self, model: Predictor, x: NDArray[Any], y: NDArray[Any]) -> float:
        """Accuracy of a model on some points."""
        return evaluate(self.network, model, self._samples(x, y)).accuracy

    def save(self, model: Predictor, path: Path) -> None:
        """Writes a model with the tensor names and shapes of its module.

        Of a mixture, every model goes under `model_0.`, `model_1.`, … with the `weights` beside them; of
        prototypes, the model as it is and a tensor `prototypes`.
        """
        if isinstance(model, Mixture):
            tensors = {"weights": torch.tensor(model.weights)}
            for number, one in enumerate(model.models):
                named = self.network.state_dict(one).items()
                tensors |= {f"model_{number}.{name}": tensor for name, tensor in named}
        elif isinstance(model, NearestPrototype):
            prototypes = {"prototypes": torch.from_numpy(model.prototypes)}
            tensors = self.network.state_dict(model.model) | prototypes
        else:
            tensors = self.network.state_dict(model)
        save_file(tensors, path)
