"""A finished run, read back from its folder: a personalized model for anyone, without training.

Whoever has some labelled points and the folder of a run gets the model that the method would give to a new
client: the same `personalize` that clients run, on the offer that the run's server would send.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from ipfl.client import Client
from ipfl.config import TrainConfig, method
from ipfl.core import EMPTY, Method, Record
from ipfl.data.federated import Parts, Samples
from ipfl.deployed import Deployed, Mixture, NearestPrototype
from ipfl.engines.local import one_thread
from ipfl.errors import InputError
from ipfl.models import Network, build_network, model_factory
from ipfl.records import read_record
from ipfl.results import OFFER, SUMMARY
from ipfl.train import evaluate


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
        try:
            summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            settings = dict(summary["config"]["method"])
            shape, classes, seed = (
                tuple(summary["input_shape"]),
                int(summary["classes"]),
                int(summary["seed"]),
            )
            model = summary["config"]["task"]["model"]
        except OSError as error:
            raise InputError(f"{folder} holds no finished run: {error.strerror}: {error.filename}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder / SUMMARY} is not the summary of a run of `ipfl run`: {error!r}"
            ) from error
        network = build_network(model_factory(model), shape, classes, seed)
        offer = read_record(folder / OFFER)
        for name, vector in offer.params.items():
            if vector.shape != (network.size,):
                raise InputError(f"{folder / OFFER}: {name!r} does not fit the model {model!r}")
        return cls(summary, method(settings.pop("name"), **settings), offer, network)

    def _samples(self, x: NDArray[Any], y: NDArray[Any]) -> Samples:
        shape, classes = self.network.input_shape, int(self.summary["classes"])
        if x.shape[1:] != shape and (*x.shape[1:], 1) == shape:
            x = x[..., None]  # grey images may come without a channel axis
        if x.shape[1:] != shape or len(x) != len(y) or not len(y):
            raise InputError(
                f"expected points of shape {shape} with a label each, not x {x.shape}, y {y.shape}"
            )
        if x.dtype != np.uint8:
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise InputError("the points hold NaN or infinite values")
        if y.min() < 0 or y.max() >= classes:
            raise InputError(f"labels must be from 0 to {classes - 1}, not {y.min()} to {y.max()}")
        return Samples(x, y.astype(np.int64))

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> Deployed:
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
            settings=TrainConfig.of(self.summary["config"]["train"]),
            initial=self.network.read(),
        )
        with one_thread():
            return self.method.personalize(self.offer, EMPTY, me)

    def accuracy(self, model: Deployed, x: NDArray[Any], y: NDArray[Any]) -> float:
        """Accuracy of a model on some points."""
        return evaluate(self.network, model, self._samples(x, y)).accuracy

    def save(self, model: Deployed, path: Path) -> None:
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
