"""The networks that are known by name, and the one that fits the data when none is named.

All are small and trained from the start; none has BatchNorm or dropout, so that models of several clients
can be averaged and every batch size works. Adapters of large pre-trained models: `ipfl.training.adapters`.

The paper's CNN pools before the ReLU: max and ReLU commute, so it is the same function with a quarter of the
ReLU's work.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

import torch
from torch import Tensor, nn

from ipfl.errors import InputError, unknown
from ipfl.system.plugins import load_callable

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]
"""(shape of a point, number of outputs) → module."""

MIN_IMAGE_SIDE = 4
"""Least height and width of an image for convolutions."""


def image_shape(shape: Shape, model: str) -> tuple[int, int, int]:
    """Height, width and channels of images; grey ones may come without a channel axis.

    Raises:
        InputError: These are no images, or too small ones.
    """
    full = (*shape, 1) if len(shape) == 2 else shape
    if len(full) != 3 or min(full[:2]) < MIN_IMAGE_SIDE:
        hint = ""
        if len(full) == 3 and full[0] in (1, 3) and min(full[1:]) >= MIN_IMAGE_SIDE:
            hint = "; channels come last here: x.transpose(0, 2, 3, 1)"
        raise InputError(
            f"model {model!r} needs images of at least 4×4, not shape {shape}; use 'mlp' or 'softmax'{hint}"
        )
    return full[0], full[1], full[2]


class CNN(nn.Module):
    """The paper's network: conv 32-64-64 (3×3), two 2×2 pools, linear →128, then classes.

    28×28 images give its 3136→128 linear layer; other sizes get the same net with another width there.
    """

    label = "cnn"
    """What `task.model` calls it."""
    channels = (32, 64, 64)
    """Of the convolutions."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        height, width, colours = image_shape(shape, self.label)
        first, second, third = self.channels
        self.conv1 = nn.Conv2d(colours, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(third * (height // 4) * (width // 4), 128)
        self.out = nn.Linear(128, classes)
        for layer in (self.conv1, self.conv2, self.conv3, self.hidden, self.out):
            # He et al. 2015. PyTorch's default gain is too small for five layers: the first ten rounds
            # of a federation with few local steps would be spent on a plateau.
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch (n, channels, height, width), or of grey images (n, height, width)."""
        x = torch.relu(self.pool(self.conv1(x if x.dim() == 4 else x[:, None])))
        x = torch.relu(self.pool(self.conv2(x)))
        x = torch.relu(self.conv3(x))
        return self.out(torch.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class SmallCNN(CNN):
    """The paper's network with half of its channels: about a third of the time."""

    label = "small_cnn"
    channels = (16, 32, 32)


class MLP(nn.Sequential):
    """One hidden layer of 128."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, classes))


class Softmax(nn.Sequential):
    """Softmax regression."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


class ResNet8(nn.Module):
    """The residual network of He et al. 2016 for small images with n = 1: 16, 32 and 64 channels.

    GroupNorm takes the place of BatchNorm, whose statistics do not survive averaging over unlike clients.
    """

    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        channels = image_shape(shape, "resnet8")[2]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2)
        )
        self.out = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch (n, channels, height, width), or of grey images (n, height, width)."""
        x = self.blocks(self.stem(x if x.dim() == 4 else x[:, None]))
        return self.out(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(into, out, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(4, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.GroupNorm(4, out),
        )
        is_same = into == out and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(into, out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways, cut off at 0."""
        return torch.relu(self.inner(x) + self.shortcut(x))


def pick_model(shape: Shape, classes: int) -> nn.Module:
    """The network for points of a shape when none is named."""
    return model_factory(picked_name(shape))(shape, classes)


def picked_name(shape: Sequence[int]) -> str:
    """What `auto` is for points of a shape: by the shape alone, so that all pick the same."""
    if len(shape) == 3 and min(shape[:2]) >= MIN_IMAGE_SIDE:
        return "cnn"
    return "cnn1d" if len(shape) == 2 else "mlp"


_HERE, _SEQUENCES = __name__, "ipfl.training.sequence_models"
MODELS: dict[str, str] = {
    "auto": f"{_HERE}:pick_model",
    "cnn": f"{_HERE}:CNN",
    "small_cnn": f"{_HERE}:SmallCNN",
    "resnet8": f"{_HERE}:ResNet8",
    "mlp": f"{_HERE}:MLP",
    "softmax": f"{_HERE}:Softmax",
    "cnn1d": f"{_SEQUENCES}:CNN1D",
    "lstm": f"{_SEQUENCES}:LSTM",
    "transformer": f"{_SEQUENCES}:Transformer",
}
"""Name → factory, as `module:callable`."""
TOKEN_MODELS = ("lstm", "transformer")
"""Those that also read token ids, and then need to know how many there are."""
PRETRAINED = "hf:"
"""What the name of a pre-trained language model begins with."""


def model_factory(model: str | Factory, tokens: int | None = None) -> Factory:
    """Resolves a name, a `module:callable` or a callable to a factory (input_shape, classes) → module.

    Args:
        model: What `task.model` says, or a callable.
        tokens: Number of token ids, for models that read them.
    """
    if not isinstance(model, str):
        return model
    if model.startswith(PRETRAINED):
        from ipfl.training.adapters import AdapterFactory  # torch alone is enough for all others

        return AdapterFactory(model.removeprefix(PRETRAINED))
    if ":" in model:
        return load_callable(model, "model")
    if model not in MODELS:
        raise unknown("model", model, [*MODELS, "hf:PATH_OR_NAME", "module:callable"])
    module, _, name = MODELS[model].partition(":")
    factory: Callable[..., nn.Module] = getattr(import_module(module), name)
    return partial(factory, tokens=tokens) if model in TOKEN_MODELS else factory


def model_reference(factory: Factory) -> str | None:
    """What `model_factory` finds a factory by: its name, or `module:callable`; None: nothing finds it.

    A lambda, a function inside a function, and what stands in a script or notebook cannot be imported.
    """
    factory = factory.func if isinstance(factory, partial) else factory
    if (named := getattr(factory, "reference", None)) is not None:
        return str(named)
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module in ("", "__main__") or getattr(sys.modules.get(module), name, None) is not factory:
        return None
    reference = f"{module}:{name}"
    return next((known for known, place in MODELS.items() if place == reference), reference)
