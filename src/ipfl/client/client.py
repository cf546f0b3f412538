"""The client's side of a phase: its data, its workspace, its random stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipfl.config.train_section import TrainConfig
from ipfl.core import ClientId, Vector, stream
from ipfl.data.federated import Parts, Samples
from ipfl.training.network import Network, Points
from ipfl.training.sgd import (
    Objective,
    Predictor,
    Pull,
    Score,
    evaluate,
    features,
    log_scores,
    losses,
    mean_gradient,
    predictions,
    sgd,
)

Part = Literal["train", "probe", "goal"]
"""What a method may use of a client's data; `test` belongs to the evaluator."""


class TrainingInput(NamedTuple):
    """What a client's training depends on, beside its settings."""

    points: Samples | Points
    rng: np.random.Generator
    objective: Objective | None
    hides_statistics: bool = False
    """Whether statistics of the points, such as batch norm's, stay as they were."""


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
    initial: Vector
    """The parameters that everyone can make from the run's seed, without being sent them."""
    _points: dict[tuple[Part, int | None], Points] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def rng(self) -> np.random.Generator:
        """This client's stream for this action and round; the same on every engine."""
        return stream(self.seed, self.action, self.round, self.id % 2**32)

    def data(self, part: Part, limit: int | None = None) -> Samples:
        """The samples of one part, the first `limit` of them (their order is random already)."""
        samples: Samples = getattr(self.parts, part)
        return samples if limit is None else samples[:limit]

    def points(self, part: Part, limit: int | None = None) -> Points:
        """The same on the network's device, where they are put once in a phase."""
        if (part, limit) not in self._points:
            self._points[part, limit] = self.network.points(self.data(part, limit))
        return self._points[part, limit]

    def train(
        self,
        start: Vector,
        *,
        epochs: int | None = None,
        lr: float | None = None,
        pull: Pull | None = None,
        objective: Objective | None = None,
        on: Samples | None = None,
        only: str | None = None,
    ) -> Vector:
        """Local training on `train` or some samples of it.

        Args:
            start: Parameters to start from.
            epochs: Instead of the settings' number.
            lr: Instead of the settings' learning rate.
            pull: As for `ipfl.training.sgd.sgd`, like `objective`.
            objective: Likewise.
            on: What to train on; None: `train`.
            only: The part of the network that is trained (`part`); all else stays as it is, to the last bit.
        """
        if only is not None:
            part = self.network.part(only)
            with self.network.training_only(part):
                trained = self.train(start, epochs=epochs, lr=lr, pull=pull, objective=objective, on=on)
            return part.put(start, part.of(trained))
        others = {"epochs": epochs, "lr": lr}
        settings = self.settings.model_copy(update={k: v for k, v in others.items() if v is not None})
        given = self._training_input(on, objective, settings.epochs)
        points, rng, objective = given.points, given.rng, given.objective
        trained = sgd(self.network, start, points, settings, rng, pull=pull, objective=objective)
        if given.hides_statistics and len(trained) > self.network.trained:
            trained[self.network.trained :] = start[self.network.trained :]
        return trained

    def part(self, params: Vector, name: str) -> Vector:
        """A part of a network: `body`, `head`, `norms`, `adapters`, or another that its module names.

        Args:
            params: The whole network.
            name: Of the part; `not norms` is all but the norms.
        """
        return self.network.part(name).of(params)

    def with_part(self, params: Vector, name: str, values: Vector) -> Vector:
        """A network with another part in it."""
        return self.network.part(name).put(params, values)

    def _training_input(self, on: Samples | None, objective: Objective | None, epochs: int) -> TrainingInput:
        """What a training works with; a private client has noise in it."""
        return TrainingInput(self.points("train") if on is None else on, self.rng, objective)

    def score(self, predictor: Predictor, part: Part, limit: int | None = None) -> Score:
        """How a model (or mixture, or prototypes) does on one part."""
        return evaluate(self.network, predictor, self.points(part, limit))

    def losses(self, params: Vector, part: Part, limit: int | None = None) -> NDArray[np.float64]:
        """Loss of every point of one part, the one that is trained on."""
        return losses(self.network, params, self.points(part, limit))

    @property
    def predicts_classes(self) -> bool:
        """Whether every point has one class; see `ipfl.data.target_kinds` for the other kinds."""
        return self.network.target.kind == "classes"

    def log_scores(self, params: Vector, samples: Samples) -> NDArray[np.float64]:
        """(n, classes): logarithm of the probability of every class, of some of the client's samples.

        (n, 1) where no classes are predicted: the logarithm of every point's soft score.
        """
        table = log_scores(self.network, params, samples)
        return table if len(table) else np.empty((0, self.classes if self.predicts_classes else 1))

    def gradient(self, params: Vector, on: Part | Samples) -> Vector:
        """Gradient of the mean loss at `params` on one part, or on some samples of it."""
        return mean_gradient(self.network, params, on if isinstance(on, Samples) else self.points(on))

    def features(self, params: Vector, part: Part) -> NDArray[np.float32]:
        """(n, features): what goes into the classifier, of every point of one part."""
        return features(self.network, params, self.points(part))

    def predict(self, params: Vector, part: Part) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Predicted classes on one part."""
        return predictions(self.network, params, self.points(part))
