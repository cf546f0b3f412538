"""Models that leave a run: ordinary PyTorch modules that take a user's raw points.

A `Predictor` is made of flat vectors in a layout of our own. Here it becomes an `nn.Module` in PyTorch's
layout, with all that happens to a point before it reaches the network inside.

What the numbers that a model returns mean stands in one place, `probabilities` and `decide`, by what the task
predicts (`ipfl.data.target_kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from ipfl.core import Vector
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError
from ipfl.training.architectures import Shape
from ipfl.training.losses import as_outputs, mix_outputs
from ipfl.training.network import Network, prepare_inputs, with_features
from ipfl.training.sgd import Mixture, NearestPrototype, Predictor

SCORING_BATCH = 256
"""Points that go through a model at once, in `class_scores`."""


class ClientModel(nn.Module):
    """The model of a client: takes raw points, returns a score for each class.

    Points are a batch `(n, …)` as they were given to the run: images `(n, height, width, channels)`, as
    `uint8` if the run's were. Scaling and the order of PyTorch's axes are taken care of inside. `softmax` of
    the scores are probabilities. Where labels are predicted, the scores are log-odds; where numbers are, they
    are standardised (`target.decode` has them in the units of the data). The model is in evaluation mode and
    on the CPU; train it further like any other module.

    Attributes:
        input_shape: Of a point.
        input_dtype: Of the run's points, such as `torch.uint8`; None: unknown, points are taken as they are.
        reads_tokens: Whether points are token ids.
        target: What is predicted.
    """

    def __init__(self, network: Network, input_dtype: torch.dtype | None):
        super().__init__()
        self.input_shape, self.input_dtype = network.input_shape, input_dtype
        self.reads_tokens, self.target = network.reads_tokens, network.target

    def inputs(self, x: Tensor) -> Tensor:
        """Raw points as the network wants them.

        Raises:
            InputError: They have another shape than the run's points, or fractions where those were whole.
        """
        if not torch.compiler.is_exporting():
            x = self._checked(x)
        return prepare_inputs(x, self.input_shape, reads_tokens=self.reads_tokens)

    def _checked(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.input_shape and (*x.shape[1:], 1) == self.input_shape:
            x = x[..., None]  # grey images may come without a channel axis
        if x.dim() < 1 or x.shape[1:] != self.input_shape:
            raise InputError(f"expected points (n, {_axes(self.input_shape)}), not {tuple(x.shape)}")
        if self.input_dtype is None or x.dtype == self.input_dtype:
            return x
        if x.is_floating_point() and not self.input_dtype.is_floating_point:
            expected, given = (str(kind).removeprefix("torch.") for kind in (self.input_dtype, x.dtype))
            raise InputError(f"the points of this run are {expected}, these are {given}: give them unscaled")
        converted = x.to(self.input_dtype)
        if not self.input_dtype.is_floating_point and not torch.equal(converted.to(x.dtype), x):
            raise InputError("the points have numbers that do not fit the run's points: give them unscaled")
        return converted


class NetworkModel(ClientModel):
    """One network. `state_dict()` has the names of the network itself and loads into a plain one.

    Attributes:
        network: The network itself; it takes points as the training gave them to it, see `inputs`.
    """

    def __init__(self, network: Network, input_dtype: torch.dtype | None, model: Vector):
        super().__init__(network, input_dtype)
        self.network = network.copy_module(model)
        self.register_state_dict_post_hook(_strip_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of raw points, as the network gives them."""
        scores: Tensor = self.network(self.inputs(x))
        return scores


class MixtureModel(ClientModel):
    """Networks whose probabilities are added up with weights: `model_0`, `model_1`, … and `weights`."""

    weights: Tensor

    def __init__(self, network: Network, input_dtype: torch.dtype | None, mixture: Mixture):
        super().__init__(network, input_dtype)
        self._names = [f"model_{number}" for number in range(len(mixture.models))]
        for name, model in zip(self._names, mixture.models, strict=True):
            self.add_module(name, network.copy_module(model))
        self.register_buffer("weights", torch.tensor(mixture.weights))

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities of the classes, log-odds of labels, or numbers."""
        inputs = self.inputs(x)
        every = [as_outputs(self.target, self.get_submodule(name)(inputs).float()) for name in self._names]
        return mix_outputs(self.target, every, self.weights)


class PrototypeModel(NetworkModel):
    """A network whose features are compared with a prototype per class; its state has `prototypes`, too."""

    prototypes: Tensor

    def __init__(self, network: Network, input_dtype: torch.dtype | None, predictor: NearestPrototype):
        super().__init__(network, input_dtype, predictor.model)
        self.register_buffer("prototypes", torch.tensor(predictor.prototypes))

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities: the nearer a class's prototype, the higher; a class without one has none."""
        features, _ = with_features(self.network, lambda: self.network(self.inputs(x)))
        gaps = features[:, None] - self.prototypes.nan_to_num()
        distances = gaps.square().sum(dim=2).masked_fill(self.prototypes.isnan().any(dim=1), torch.inf)
        return log_softmax(-distances, dim=1)


def _strip_prefix(model: nn.Module, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]) -> None:
    """Leaves the `network.` out of the names of a state that is handed out."""
    for name in [name for name in state if name.startswith(f"{prefix}network.")]:
        state[prefix + name.removeprefix(f"{prefix}network.")] = state.pop(name)


def _add_prefix(model: nn.Module, state: dict[str, Any], prefix: str, *more: object) -> None:
    """Puts it back into the names of a state that is loaded."""
    for name in [name for name in state if name.startswith(prefix)]:
        own = name.removeprefix(prefix)
        if own not in model._buffers:
            state[f"{prefix}network.{own}"] = state.pop(name)


def make_model(network: Network, predictor: Predictor, input_dtype: str | None) -> ClientModel:
    """The module that predicts what a predictor does.

    Args:
        network: Of the run.
        predictor: What a client predicts with, or a model of the server.
        input_dtype: Type of the run's points, such as `uint8`; None: unknown.
    """
    dtype = _torch_dtype(input_dtype)
    if isinstance(predictor, Mixture):
        return MixtureModel(network, dtype, predictor).eval()
    if isinstance(predictor, NearestPrototype):
        return PrototypeModel(network, dtype, predictor).eval()
    return NetworkModel(network, dtype, predictor).eval()


def _torch_dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else torch.from_numpy(np.empty(0, name)).dtype


def _axes(shape: Shape) -> str:
    return ", ".join(map(str, shape))


@torch.no_grad()
def class_scores(model: ClientModel, x: ArrayLike | Tensor) -> Tensor:
    """The scores of a model for some raw points, batch by batch.

    Args:
        model: In evaluation mode.
        x: An array or tensor of points.
    """
    points = x.detach().cpu() if isinstance(x, Tensor) else torch.tensor(_array(x))
    return torch.cat([model(part).float() for part in torch.split(points, SCORING_BATCH)])


def _array(x: ArrayLike) -> NDArray[Any]:
    array = np.asarray(x)
    if array.dtype.kind not in "buif":
        raise InputError(f"expected points of numbers, not of {array.dtype}")
    return np.ascontiguousarray(array)


def probabilities(scores: Tensor, target: Target) -> NDArray[np.float32]:
    """(n, classes): the probability of each class, or of each label.

    Raises:
        InputError: Numbers are predicted, which have no probabilities.
    """
    if target.kind == "regression":
        raise InputError("this run predicts numbers, which have no probabilities")
    return (scores.softmax(dim=1) if target.kind == "classes" else scores.sigmoid()).numpy()


def decide(scores: Tensor, target: Target) -> NDArray[Any]:
    """The prediction: the class with the highest score; labels as 0 and 1; numbers in the data's units."""
    if target.kind == "classes":
        return scores.argmax(dim=1).numpy()
    if target.kind == "multilabel":
        return (scores > 0).long().numpy()
    numbers = target.decode(scores.reshape(len(scores), -1).numpy())
    return numbers[:, 0] if target.outputs == 1 else numbers
