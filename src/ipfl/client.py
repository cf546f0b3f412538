"""The client's side of a phase: its data, its workspace, its random stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ipfl.config import TrainConfig
from ipfl.core import ClientId, Vector, stream
from ipfl.data.federated import Parts, Samples
from ipfl.models import Network
from ipfl.train import Pull, Score, evaluate, mean_gradient, predictions, sgd

Part = Literal["train", "probe", "goal"]
"""What a method may use of a client's data; `test` belongs to the evaluator."""


@dataclass(frozen=True)
class Client:
    """What `on_<action>` and `personalize` work with; lives for one phase."""

    id: ClientId
    round: int
    action: str
    seed: int
    classes: int
    parts: Parts
    network: Network
    settings: TrainConfig

    @cached_property
    def rng(self) -> np.random.Generator:
        """This client's stream for this action and round; the same on every engine."""
        return stream(self.seed, self.action, self.round, self.id % 2**32)

    def data(self, part: Part, limit: int | None = None) -> Samples:
        """The samples of one part, the first `limit` of them (their order is random already)."""
        samples: Samples = getattr(self.parts, part)
        return samples if limit is None else Samples(samples.x[:limit], samples.y[:limit])

    def train(
        self,
        start: Vector,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        pull: Pull | None = None,
    ) -> Vector:
        """Local training on `train` from `start`."""
        return sgd(
            self.network, start, self.parts.train, self.settings, self.rng, epochs=epochs, lr=lr, pull=pull
        )

    def score(self, params: Vector, part: Part, limit: int | None = None) -> Score:
        """How `params` do on one part."""
        return evaluate(self.network, params, self.data(part, limit))

    def gradient(self, params: Vector, part: Part) -> Vector:
        """Gradient of the mean loss on one part at `params`."""
        return mean_gradient(self.network, params, self.data(part))

    def predict(self, params: Vector, part: Part) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Predicted classes on one part."""
        return predictions(self.network, params, self.data(part))
