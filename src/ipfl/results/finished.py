"""A finished run, read back from its folder: its figures, everyone's models, and models for newcomers.

Anyone with some labelled points and the folder of a run gets the model that the method would give to a new
client: the same `personalize` that clients run, on the offer that the run's server would send.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file

from ipfl.client.kept_predictors import kept_clients, read_predictor
from ipfl.client.memory import ClientMemory
from ipfl.config.run_config import RunConfig
from ipfl.config.task_section import TaskConfig
from ipfl.core import ClientId, Method, Record, Vector
from ipfl.data.federated import Samples
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError, NotSupportedError
from ipfl.keep.checkpoint import Checkpoints
from ipfl.keep.file_names import (
    CHECKPOINTS,
    CLIENT_MODELS,
    MEMORY,
    METRICS_FILE,
    OFFER_FILE,
    PREDICTORS,
    SERVER_MODELS,
    SUMMARY_FILE,
)
from ipfl.keep.run_folder import is_on_nodes
from ipfl.ledger.database import STORE_FILE
from ipfl.ledger.lines import check_line
from ipfl.ledger.schema import OPENING
from ipfl.ledger.store import RunStore
from ipfl.market.market_rows import Transfer
from ipfl.methods import method as make_method
from ipfl.play.metrics import Evaluation
from ipfl.play.setup import make_setup
from ipfl.results.newcomer import newcomer_points, personalize_newcomer
from ipfl.results.result import Line, Result
from ipfl.results.result_models import PlayedRun, StoredVectors, on_its_node
from ipfl.results.summaries import ShownSummary, read_summary
from ipfl.system.files import read_record, read_text
from ipfl.system.plugins import refuse_code
from ipfl.training.architectures import Factory, model_factory
from ipfl.training.losses import find_loss
from ipfl.training.network import Network, build_network
from ipfl.training.sgd import Predictor, evaluate
from ipfl.training.task import Task

MAX_PARAMETERS = 2**26
"""Of a model of ours, if the offer has no vector that shows its size."""


class NetworkNotFoundError(NotSupportedError):
    """Nothing says where the network of a run can be imported from."""

    keyword = "pass it, such as ipfl.load(folder, model=network)"
    option = "name it with --network module:callable"


def _target(summary: dict[str, Any]) -> Target:
    """The target of the run; a class, in summaries that do not say."""
    if (found := summary.get("target")) is None:
        return Target("classes", summary["classes"])
    return Target(found["kind"], found["outputs"], tuple(found["mean"]), tuple(found["scale"]))


def _named_code(summary: dict[str, Any], *, has_task: bool, has_model: bool) -> list[Any]:
    """The names in a summary that would be imported, without what is there already."""
    config = {**summary["config"]}
    if has_task:
        config.pop("task", None)
    elif has_model and config.get("task"):
        config["task"] = {key: value for key, value in config["task"].items() if key != "model"}
    return [config] if has_task or has_model else [summary.get("model"), config]


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The folder of a run: gives models to its clients, and to those that come later."""

    folder: Path
    summary: dict[str, Any]
    given_task: Callable[[], Task] | None = None
    """Data and network, if somebody has them already."""
    given_model: Factory | None = None
    """The network, likewise."""

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        task: Task | None = None,
        model: str | Factory | None = None,
        trust: bool = False,
    ) -> FinishedRun:
        """Reads the folder of a run.

        Args:
            folder: Where it is.
            task: Its data and network; None: as the summary says.
            model: Its network, if the summary cannot name it; a name, or a callable as in
                `Task.from_clients`.
            trust: Whether code that the folder names (`module:callable`) may be imported: it may be somebody
                else's. Code that a run of this process has used is never asked about.

        Raises:
            InputError: There is no finished run, its files do not fit together, or it names code.
        """
        folder = Path(folder)
        if not (folder / SUMMARY_FILE).exists() and (
            inside := sorted(folder.glob(f"*/seed-*/{SUMMARY_FILE}"))
        ):
            raise InputError(f"{folder} holds a comparison: load one of its runs, such as {inside[0].parent}")
        factory = None if model is None else model_factory(model)
        summary = read_summary(folder)
        if not trust:
            refuse_code(_named_code(summary, has_task=task is not None, has_model=model is not None), folder)
        return cls(folder, summary, None if task is None else lambda: task, factory)

    @property
    def _settings(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.summary["config"]
        return config

    @cached_property
    def _config(self) -> RunConfig:
        keys = RunConfig.model_fields.keys()
        return RunConfig.of({key: value for key, value in self._settings.items() if key in keys})

    @cached_property
    def task(self) -> Task:
        """Data and network of the run, made again if nobody has them already."""
        if self.given_task is not None:
            return self.given_task()
        task = self._settings.get("task")
        if task is None:
            raise NotSupportedError(
                f"the data of the run in {self.folder} was given in Python: pass the task, "
                "such as ipfl.load(folder, task=task)"
            )
        seed = self.summary.get("data_seed")
        try:
            return Task.build(TaskConfig.of(task), self.summary["seed"] if seed is None else seed)
        except InputError as error:
            raise InputError(f"the data of the run in {self.folder} is not found again: {error}") from error

    def _factory(self) -> Factory:
        name = self.summary.get("model") or (self._settings.get("task") or {}).get("model")
        if self.given_model is not None:
            return self.given_model
        if name is None:
            raise NetworkNotFoundError(
                f"the network of the run in {self.folder} was made by a function that cannot be imported: "
                f"{NetworkNotFoundError.keyword}"
            )
        factory = model_factory(name, self.summary.get("tokens"))
        if ":" not in name:
            self._check_size(name, factory)
        return factory

    def _check_size(self, model: str, factory: Factory) -> None:
        """Refuses a model of ours that is not as large as the offer's vectors, before it takes memory."""
        shape = tuple(self.summary["input_shape"])
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in factory(shape, self.summary["classes"]).parameters())
        except (RuntimeError, OverflowError, TypeError) as error:
            raise InputError(f"the model {model!r} cannot be made for points of shape {shape}") from error
        path = self.folder / OFFER_FILE
        largest = (
            max((vector.size for vector in self._offer.params.values()), default=0) if path.exists() else 0
        )
        if largest > size or (size > MAX_PARAMETERS and largest < size):
            raise InputError(f"{path} does not fit the model {model!r} for points of shape {shape}")

    @cached_property
    def _fresh(self) -> tuple[Network, Vector]:
        """The network, and its parameters before the first round."""
        if self.given_task is not None:
            network = self.task.network(self.summary["seed"])
            if list(network.input_shape) != self.summary["input_shape"]:
                raise InputError(
                    f"the task has points of shape {network.input_shape}, "
                    f"the run in {self.folder} of {tuple(self.summary['input_shape'])}"
                )
        else:
            shape, classes = tuple(self.summary["input_shape"]), self.summary["classes"]
            target = _target(self.summary)
            network = build_network(self._factory(), shape, classes, self.summary["seed"], target)
        network.loss = find_loss(self._config.train.loss, network.target)
        return network, network.read()

    @property
    def network(self) -> Network:
        """The network of the run."""
        return self._fresh[0]

    @cached_property
    def method(self) -> Method[Any]:
        """The method of the run."""
        settings = dict(self._settings["method"])
        return make_method(settings.pop("name"), **settings)

    @cached_property
    def _offer(self) -> Record:
        """The record that the server would send to a new client."""
        if not (self.folder / OFFER_FILE).exists():
            name = self._settings["method"]["name"]
            raise NotSupportedError(f"not supported: {name} has no model for clients that it never met")
        return read_record(self.folder / OFFER_FILE)

    def _points(self, x: NDArray[Any], y: NDArray[Any]) -> Samples:
        return newcomer_points(self.network, self.summary.get("class_names") or (), x, y)

    def check_newcomers(self) -> None:
        """Refuses a run that has nothing for clients that come later.

        Raises:
            NotSupportedError: The method has no model for clients that it has never met.
        """
        _ = self._offer

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Predictor:
        """The model of a new client that is to be good at points like these.

        Raises:
            NotSupportedError: The method has no model for clients that it has never met.
            InputError: The points do not fit the run.
        """
        offer, (network, initial) = self._offer, self._fresh
        for name, vector in offer.params.items():
            is_whole = vector.shape == (network.size,) or (vector.ndim == 1 and self.method.needs_parts)
            if not is_whole or vector.dtype != np.float32:
                raise InputError(f"{self.folder / OFFER_FILE}: {name!r} does not fit the network")
        rounds, goal = int(self.summary["rounds"]), self._points(x, y)
        return personalize_newcomer(self.method, offer, network, initial, self._config, rounds, goal)

    def accuracy(self, model: Predictor, x: NDArray[Any], y: NDArray[Any]) -> float:
        """Accuracy of a model on some points."""
        return evaluate(self.network, model, self._points(x, y)).accuracy

    @cached_property
    def models(self) -> Mapping[str, Vector]:
        """The server's models."""
        files = sorted((self.folder / SERVER_MODELS).glob("*.safetensors"), key=_by_number)
        return StoredVectors({file.stem: file for file in files}, self._read_model)

    def _read_model(self, path: Path) -> Vector:
        network = self.network
        try:
            return network.flatten(load_file(path))
        except (SafetensorError, OSError, InputError) as error:
            raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error

    @cached_property
    def _kept(self) -> tuple[ClientId, ...]:
        return kept_clients(self.folder / PREDICTORS)

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients whose models can be asked for."""
        if self.given_task is None and len(self._kept) == self.summary["clients"]:
            return self._kept
        if self.given_task is None and self._kept and self._settings.get("task") is None:
            return self._kept  # those that there was room for; the data of the others is gone
        if is_on_nodes(self.folder):
            return tuple(range(self.summary["clients"]))
        return tuple(sorted([*self.task.data.clients, *self.task.data.unseen]))

    def predictor(self, client: ClientId) -> Predictor:
        """The model of a client after the last round."""
        if client in self._kept:
            return read_predictor(self.folder / PREDICTORS, client, self.network)
        if is_on_nodes(self.folder):
            raise on_its_node(client)
        return self._played.predictor(client)

    @cached_property
    def _played(self) -> PlayedRun:
        """The run as it was after its last round."""
        memory = ClientMemory(self.folder / CLIENT_MODELS)
        fresh = self.method.init(make_setup(self.task, self.method, self._config, memory))
        checkpoints, rounds = Checkpoints(self.folder / CHECKPOINTS), int(self.summary["rounds"])
        name = Checkpoints.name(rounds - 1)
        if rounds and not (checkpoints.folder / name).exists():
            raise InputError(f"{checkpoints.folder / name} is missing: resume the run to its end first")
        state = checkpoints.read(name, fresh) if rounds else fresh
        memory = ClientMemory(self.folder / MEMORY)
        return PlayedRun(self.task, self.method, state, self._config, memory, rounds)


def _by_number(path: Path) -> tuple[int, str]:
    """Clusters in ascending number."""
    number = path.stem.rpartition("_")[2]
    return (int(number) if number.isascii() and number.isdigit() else -1), path.stem


def load(
    folder: Path | str,
    *,
    task: Task | None = None,
    model: str | Factory | None = None,
    trust: bool = False,
) -> Result:
    """A finished run from its folder: the same figures, tables and models as in the result of `ipfl.run`.

    Data and network are found again by what the summary says of them, when they are needed. Of data that was
    given in Python, the folder keeps the clients' models (up to a gigabyte). A network that was made by a
    function in a notebook or script cannot be found again: pass it.

    Args:
        folder: Where the run was written to.
        task: Data and network of the run, if they cannot be found, or are there already.
        model: The network of the run; a name, or a callable as in `Task.from_clients`.
        trust: Whether code that the folder names (`module:callable`) may be imported: it may be somebody
            else's. Code that a run of this process has used is never asked about.

    Raises:
        InputError: There is no finished run, its files do not fit together, or it names code.
    """
    finished = FinishedRun.open(folder, task=task, model=model, trust=trust)
    return replace(load_figures(folder), models=finished.models, source=finished)


def load_figures(folder: Path | str) -> Result:
    """A finished run from its folder, without its models: what the folder names is never imported.

    Raises:
        InputError: There is no finished run, or its files do not fit together.
    """
    folder = Path(folder)
    summary = read_summary(folder, ShownSummary)
    history, evaluations = _read_history(folder)
    return Result(summary, history, evaluations, None, opening=_read_opening(folder))


class _Evaluated(BaseModel):
    """The part of an evaluation whose values are calculated with."""

    clients: list[int]
    personalized: list[float]
    cluster_accuracy: list[list[float]] | None
    participation_rate: float | None


def _read_history(folder: Path) -> tuple[list[Line], dict[int, Evaluation]]:
    """The line of every round, and the evaluations by round."""
    path = folder / METRICS_FILE
    try:
        lines = [json.loads(line) for line in read_text(path).splitlines()]
        evaluations = {}
        for line in lines:
            if "evaluation" in line:
                _Evaluated.model_validate(line["evaluation"])
                evaluations[line["round"]] = Evaluation.from_line(line["round"], line["evaluation"])
        return [check_line(line["round"], line) for line in lines], evaluations
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {' '.join(repr(error).split())}") from error


def _read_opening(folder: Path) -> tuple[Transfer, ...]:
    """Transfers before round 0."""
    if not (folder / STORE_FILE).exists():
        return ()
    return tuple(posted.transfer for posted in RunStore.open(folder).transfers(round=OPENING))
