"""Networks, and `Network`: one module whose parameters live in a single flat vector.

The paper's CNN pools before the ReLU: max and ReLU commute, so it is the same function with a quarter
of the ReLU's work. Convolution weights are kept channels-last inside the flat vector, and images arrive
as (n, height, width, channels): together this takes a training step from 1460 to about 830 µs a sample.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ipfl.core import Vector
from ipfl.core.plugins import load_callable
from ipfl.data.federated import Samples
from ipfl.errors import InputError, unknown

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]

CPU = torch.device("cpu")


class CNN(nn.Module):
    """The paper's network: conv 32-64-64 (3×3), two 2×2 pools, linear →128, then classes.

    28×28 images give its 3136→128 linear layer; other sizes get the same net with another width there.
    """

    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        if len(shape) != 3 or min(shape[:2]) < 4:
            raise InputError(
                f"model 'cnn' needs images of at least 4×4, not shape {shape}; use 'mlp' or 'softmax'"
            )
        height, width, channels = shape
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(64 * (height // 4) * (width // 4), 128)
        self.out = nn.Linear(128, classes)
        for layer in (self.conv1, self.conv2, self.conv3, self.hidden, self.out):
            # He et al. 2015. PyTorch's default gain is too small for five layers: the first ten rounds
            # of a federation with few local steps would be spent on a plateau.
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch (n, channels, height, width)."""
        x = torch.relu(self.pool(self.conv1(x)))
        x = torch.relu(self.pool(self.conv2(x)))
        x = torch.relu(self.conv3(x))
        return self.out(torch.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class MLP(nn.Sequential):
    """One hidden layer of 128."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, classes))


class Softmax(nn.Sequential):
    """Softmax regression."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


MODEL_FACTORIES: dict[str, Factory] = {"cnn": CNN, "mlp": MLP, "softmax": Softmax}


def model_factory(model: str | Factory) -> Factory:
    """Resolves a name, a `module:callable` or a callable to a factory (input_shape, classes) → module."""
    if not isinstance(model, str):
        return model
    if ":" in model:
        return load_callable(model, "model")
    if model not in MODEL_FACTORIES:
        raise unknown("model", model, [*MODEL_FACTORIES, "module:callable"])
    return MODEL_FACTORIES[model]


def model_reference(factory: Factory) -> str | None:
    """What `model_factory` finds a factory by: its name, or `module:callable`; None: nothing finds it.

    A lambda, a function inside a function, and what stands in a script or notebook cannot be imported.
    """
    for name, known in MODEL_FACTORIES.items():
        if known is factory:
            return name
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module in ("", "__main__") or getattr(sys.modules.get(module), name, None) is not factory:
        return None
    return f"{module}:{name}"


@dataclass(frozen=True)
class Slot:
    """Where one parameter or buffer lives in the flat vector."""

    name: str
    shape: Shape
    start: int
    stop: int


def _layout(module: nn.Module) -> tuple[list[Slot], int]:
    """Slots of the parameters, then of float buffers; and the length of the parameters alone."""
    slots, position, trained = [], 0, 0
    named: list[tuple[str, Tensor]] = list(module.named_parameters())
    for name, tensor in [*named, *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue  # counters such as BatchNorm's num_batches_tracked stay where they are
        slots.append(Slot(name, tuple(tensor.shape), position, position + tensor.numel()))
        position += tensor.numel()
        if len(slots) <= len(named):
            trained = position
    return slots, trained


def _view(flat: Tensor, slot: Slot) -> Tensor:
    """A view with the slot's shape; convolution weights lie channels-last in the vector."""
    part = flat[slot.start : slot.stop]
    if len(slot.shape) == 4:
        out, into, height, width = slot.shape
        return part.view(out, height, width, into).permute(0, 3, 1, 2)
    return part.view(slot.shape)


def _plain(tensor: Tensor) -> Tensor:
    """A copy with memory of its own, in the order of its axes."""
    return tensor.clone(memory_format=torch.contiguous_format)


def prepare_inputs(x: Tensor, input_shape: Shape) -> Tensor:
    """A batch of points as a module wants it: uint8 images become floats, channels first.

    Colour images are centred to [−1, 1]. Grey ones are ink on an empty ground: they go to [0, 1], so that the
    ground is 0 (centred, the letters' large even ground kept the network from learning in 1 of 6 seeds).
    """
    batch = x.to(torch.float32)
    if x.dtype == torch.uint8:
        batch = batch.mul_(1 / 255) if input_shape[-1] == 1 else batch.mul_(2 / 255).sub_(1)
    return batch.permute(0, 3, 1, 2) if batch.dim() == 4 else batch


def last_linear(module: nn.Module) -> nn.Linear:
    """A module's last linear layer; what goes into it are the features."""
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise InputError(f"model {type(module).__name__} has no linear layer to take features from")
    return linear[-1]


@dataclass(frozen=True)
class Points:
    """Samples on a network's device: images still as bytes, (n, height, width, channels)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


class Network:
    """A module whose parameters, gradients and float buffers are views of flat tensors.

    Loading, averaging, pulling and stepping are then single operations on one vector, and what travels
    between processes is that vector. The tensors are on one device, the CPU unless `move` says otherwise;
    vectors go there with `load` and `put`, samples with `points`, and nothing else does.
    """

    def __init__(self, module: nn.Module, input_shape: Shape):
        self.module = module
        self.input_shape = input_shape
        self.slots, self.trained = _layout(module)
        if not self.slots:
            raise InputError(f"model {type(module).__name__} has no parameters to train")
        self.precision: Literal["float32", "bf16"] = "float32"
        """Of the forward and backward passes of training; parameters, gradients and all else are float32."""
        self.move(CPU)

    def move(self, device: torch.device) -> None:
        """Puts parameters, gradients and buffers on a device; it must be done in the process that uses it."""
        self.device = device
        self.module.to(device)  # what is no float, too
        self.flat = torch.empty(self.slots[-1].stop, device=device)
        self.grad = torch.zeros(self.trained, device=device)
        self._host = self.flat if device == CPU else torch.empty(self.slots[-1].stop)
        with torch.no_grad():
            for slot, tensor in zip(self.slots, self._tensors(), strict=True):
                view = _view(self.flat, slot)
                view.copy_(tensor)
                tensor.data = view
                if isinstance(tensor, nn.Parameter):
                    tensor.grad = _view(self.grad, slot)

    def _tensors(self, module: nn.Module | None = None) -> Iterator[Tensor]:
        """What the slots hold, in their order: of this network's module, or of a copy of it."""
        module = self.module if module is None else module
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                yield tensor

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return len(self.flat)

    def load(self, vector: Vector) -> None:
        """Makes `vector` the module's parameters."""
        self._host.numpy()[:] = vector
        self.flat.copy_(self._host)  # does nothing on the CPU, where they are the same tensor

    def read(self) -> Vector:
        """A copy of the module's parameters."""
        return self.flat.cpu().numpy().copy()

    def put(self, array: NDArray[Any]) -> Tensor:
        """A copy of an array on the device."""
        return torch.tensor(np.ascontiguousarray(array), device=self.device)

    def points(self, samples: Samples | Points) -> Points:
        """Samples on the device; those that are there already stay as they are."""
        return samples if isinstance(samples, Points) else Points(self.put(samples.x), self.put(samples.y))

    def fork_rng(self) -> AbstractContextManager[None]:
        """What torch draws inside (dropout) leaves its own stream as it was."""
        return torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])

    def inputs(self, x: Tensor) -> Tensor:
        """A batch as the module wants it; see `prepare_inputs`."""
        return prepare_inputs(x, self.input_shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores of a batch, as float32."""
        with self._autocast():
            scores: Tensor = self.module(inputs)
        return scores.float()

    def _autocast(self) -> AbstractContextManager[object]:
        """Lower precision inside, if it is wanted and the module is being trained."""
        if self.precision == "bf16" and self.module.training:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    @property
    def classifier(self) -> nn.Linear:
        """The last linear layer; what goes into it are the features."""
        return last_linear(self.module)

    def features(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Features of a batch (n, width) and its class scores, in one pass, as float32."""
        seen: list[Tensor] = []
        watch = self.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            scores = self.forward(batch)
        finally:
            watch.remove()
        return seen[-1].float(), scores

    def top(self, layers: int) -> slice:
        """Where the last so many layers (weights and bias together) lie in the flat vector."""
        starts: dict[str, int] = {}
        for slot in self.slots:
            if slot.start < self.trained:
                starts.setdefault(slot.name.rpartition(".")[0], slot.start)
        return slice(list(starts.values())[-min(layers, len(starts))], self.trained)

    def state_dict(self, vector: Vector) -> dict[str, Tensor]:
        """`vector` as named tensors in the module's ordinary shapes, as PyTorch users expect them.

        All that `load_state_dict` of the module wants: tied parameters under each of their names, and
        counters, which are no part of the vector, as they are here.
        """
        flat = torch.from_numpy(np.array(vector, dtype=np.float32))
        slots = {id(tensor): slot for slot, tensor in zip(self.slots, self._tensors(), strict=True)}
        named = self.module.state_dict(keep_vars=True).items()
        return {
            name: _plain(_view(flat, slots[id(tensor)]) if id(tensor) in slots else tensor.detach().cpu())
            for name, tensor in named
            if isinstance(tensor, Tensor)
        }

    def flatten(self, state: Mapping[str, Tensor]) -> Vector:
        """The vector that `state_dict` made these tensors of; what they do not name stays as it is here.

        Raises:
            InputError: A tensor has another shape than the module's.
        """
        flat = torch.from_numpy(self.read())
        for slot in self.slots:
            if slot.name in state:
                if tuple(state[slot.name].shape) != slot.shape:
                    raise InputError(
                        f"{slot.name} has shape {tuple(state[slot.name].shape)}, not {slot.shape}"
                    )
                _view(flat, slot).copy_(state[slot.name])
        return flat.numpy()

    def copy_module(self, vector: Vector) -> nn.Module:
        """A copy of the module with these parameters: an ordinary one, on the CPU, in evaluation mode."""
        module = copy.deepcopy(self.module).to(CPU).eval()
        flat = torch.from_numpy(np.array(vector, dtype=np.float32))
        for slot, tensor in zip(self.slots, self._tensors(module), strict=True):
            tensor.data, tensor.grad = _plain(_view(flat, slot)), None
        return module


def build_network(factory: Factory, input_shape: Shape, classes: int, seed: int) -> Network:
    """A fresh network; the same seed gives the same initial parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = factory(input_shape, classes)
    if not isinstance(module, nn.Module):
        raise InputError(f"the model callable returned {type(module).__name__}, not a torch.nn.Module")
    return Network(module, input_shape)
