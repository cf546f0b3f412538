"""`Network`: one module whose parameters live in a single flat vector.

The modules are in `ipfl.training.architectures`.

Convolution weights are kept channels-last inside the flat vector, and images arrive as (n, height, width,
channels): together with a CNN that pools early this takes a training step from 1460 to about 830 µs a sample.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ipfl.core import Vector
from ipfl.data.federated import Samples
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError
from ipfl.training.architectures import Factory, Shape
from ipfl.training.losses import Loss, find_loss

if TYPE_CHECKING:
    from ipfl.training.parts import NetworkPart

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Slot:
    """Where one parameter or buffer lives in the flat vector."""

    name: str
    shape: Shape
    start: int
    stop: int
    is_frozen: bool = False
    """Whether it is a parameter that is never trained (`requires_grad_(False)`)."""


def _layout(module: nn.Module) -> tuple[list[Slot], int]:
    """Slots of the parameters, then of float buffers; and the length of the parameters alone."""
    slots, position, trained = [], 0, 0
    for name, tensor in _travelling(module):
        is_parameter = isinstance(tensor, nn.Parameter)
        is_frozen = is_parameter and not tensor.requires_grad
        slots.append(Slot(name, tuple(tensor.shape), position, position + tensor.numel(), is_frozen))
        position += tensor.numel()
        if is_parameter:
            trained = position
    return slots, trained


def _travelling(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What is in the flat vector: all parameters and float buffers, or what is trained alone.

    A module with `only_trained_travels`, such as adapters of a large model, has the rest at every client.
    """
    only_trained = getattr(module, "only_trained_travels", False)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or not only_trained:
            yield name, parameter
    for name, buffer in [] if only_trained else module.named_buffers():
        if buffer.is_floating_point():  # counters such as BatchNorm's num_batches_tracked stay where they are
            yield name, buffer


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


DrawBatches = Callable[[np.random.Generator, int], Iterator[NDArray[np.intp]]]
"""The positions of each batch of an epoch, given the client's stream and the number of its points."""


@dataclass(frozen=True)
class Points:
    """Samples on a network's device: images still as bytes, (n, height, width, channels)."""

    x: Tensor
    y: Tensor
    """Targets as networks are trained on them (`Target.encode`)."""
    draw: DrawBatches | None = None
    """The batches of an epoch of training; None: all points, shuffled."""

    def __len__(self) -> int:
        return len(self.y)


def prepare_inputs(x: Tensor, input_shape: Shape, *, reads_tokens: bool = False) -> Tensor:
    """Raw points as a module wants them: uint8 images become floats, channels first; token ids stay whole.

    Colour images are centred to [−1, 1]. Grey ones are ink on an empty ground: they go to [0, 1], so that the
    ground is 0 (centred, the letters' large even ground kept the network from learning in 1 of 6 seeds).

    Args:
        x: A batch of points.
        input_shape: Of a point; uint8 values are scaled only in the shape of an image.
        reads_tokens: Whether the module has an embedding, which takes whole numbers as they are.
    """
    is_image = len(input_shape) == 3
    if reads_tokens and not is_image and not x.is_floating_point():
        return x.long()
    batch = x.to(torch.float32)
    if x.dtype == torch.uint8 and is_image:
        batch = batch.mul_(1 / 255) if input_shape[-1] == 1 else batch.mul_(2 / 255).sub_(1)
    return batch.permute(0, 3, 1, 2) if batch.dim() == 4 else batch


class Network:
    """A module whose parameters, gradients and float buffers are views of flat tensors.

    Loading, averaging, pulling and stepping are then single operations on one vector, and what travels
    between processes is that vector. The tensors are on one device, the CPU unless `move` says otherwise;
    vectors go there with `load` and `put`, samples with `points`, and nothing else does.

    Args:
        module: Any module.
        input_shape: Shape of a point.
        target: What it predicts; None: a class.
    """

    def __init__(self, module: nn.Module, input_shape: Shape, target: Target | None = None):
        self.module = module
        self.input_shape = input_shape
        self.target = target or Target("classes", 0)
        self.loss: Loss = find_loss("auto", self.target)
        """What it is trained on."""
        self.slots, self.trained = _layout(module)
        if not self.trained or all(slot.is_frozen for slot in self.slots if slot.start < self.trained):
            raise InputError(f"model {type(module).__name__} has no parameters to train")
        self.frozen = tuple(slice(slot.start, slot.stop) for slot in self.slots if slot.is_frozen)
        """Where frozen parameters lie in the flat vector."""
        self._only: NetworkPart | None = None
        self.reads_tokens = any(isinstance(part, nn.Embedding) for part in module.modules())
        """Whether whole numbers go in as they are."""
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
        return (tensor for _, tensor in _travelling(self.module if module is None else module))

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

    def trained_parts(self) -> list[Tensor]:
        """The flat parameters without the frozen ones, as few stretches as can be, each with its gradient."""
        edges = [0, *(edge for part in self.frozen for edge in (part.start, part.stop)), self.trained]
        parts = []
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if start < stop:
                part = self.flat[start:stop]
                part.grad = self.grad[start:stop]
                parts.append(part)
        return parts

    def part(self, name: str) -> NetworkPart:
        """Where the part of that name lies (`ipfl.training.parts`).

        Raises:
            InputError: The network has no such part.
        """
        from ipfl.training.parts import NetworkPart, find_part  # most methods need no parts

        slots = {slot.name: slot for slot in self.slots}
        tensors = dict(zip(slots, self._tensors(), strict=True))
        places: list[slice] = []
        for found in find_part(self.module, tensors, name):
            slot = slots[found]
            if places and places[-1].stop == slot.start:
                places[-1] = slice(places[-1].start, slot.stop)
            else:
                places.append(slice(slot.start, slot.stop))
        return NetworkPart(tuple(places))

    @contextmanager
    def training_only(self, part: NetworkPart) -> Iterator[None]:
        """All but a part is frozen inside, as if the user had frozen it.

        Raises:
            InputError: Nothing of it can be trained.
        """
        before, slots = self.frozen, [slot for slot in self.slots if slot.start < self.trained]
        fixed = [slot for slot in slots if slot.is_frozen or not part.holds(slot.start)]
        if len(fixed) == len(slots):
            raise InputError(f"model {type(self.module).__name__}: nothing in this part can be trained")
        resting = [
            tensor
            for slot, tensor in zip(self.slots, self._tensors(), strict=True)
            if tensor.requires_grad and not part.holds(slot.start)
        ]
        self.frozen, self._only = tuple(slice(slot.start, slot.stop) for slot in fixed), part
        for tensor in resting:
            tensor.requires_grad_(False)
        try:
            yield
        finally:
            self.frozen, self._only = before, None
            for tensor in resting:
                tensor.requires_grad_(True)

    def start_training(self) -> None:
        """Training mode; a BatchNorm that is frozen, or in no part that is trained, keeps its statistics."""
        self.module.train()
        starts = {id(tensor): slot.start for slot, tensor in zip(self.slots, self._tensors(), strict=True)}
        for layer in self.module.modules():
            if not isinstance(layer, _BatchNorm):
                continue
            own = [parameter.requires_grad for parameter in layer.parameters(recurse=False)]
            start = starts.get(id(layer.running_mean))
            is_outside = self._only is not None and start is not None and not self._only.holds(start)
            if is_outside or (own and not any(own)):
                layer.eval()

    def start_scoring(self) -> None:
        """Evaluation mode; setting it takes as long as scoring a few points."""
        if self.module.training:
            self.module.eval()

    def put(self, array: NDArray[Any]) -> Tensor:
        """A copy of an array on the device."""
        return torch.tensor(np.ascontiguousarray(array), device=self.device)

    def points(self, samples: Samples | Points) -> Points:
        """Samples on the device; those that are there already stay as they are."""
        if isinstance(samples, Points):
            return samples
        return Points(self.put(samples.x), self.put(self.target.encode(samples.y)))

    def fork_rng(self) -> AbstractContextManager[None]:
        """What torch draws inside (dropout) leaves its own stream as it was."""
        return torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else [])

    def inputs(self, x: Tensor) -> Tensor:
        """A batch as the module wants it."""
        return prepare_inputs(x, self.input_shape, reads_tokens=self.reads_tokens)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of a batch, (n, outputs) as float32: class scores, log-odds of labels, or numbers."""
        with self._autocast():
            scores: Tensor = self.module(inputs)
        if scores.dim() == 1 and self.target.outputs == 1:
            scores = scores[:, None]
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

    @property
    def output_bias(self) -> slice | None:
        """Where the bias of the last linear layer lies in the flat vector; None if it has none there."""
        layer = find_last_linear(self.module)
        bias = None if layer is None else layer.bias
        for slot, tensor in zip(self.slots, self._tensors(), strict=True):
            if tensor is bias:
                return slice(slot.start, slot.stop)
        return None

    def features(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Features of a batch (n, width) and its class scores, in one pass, as float32."""
        return with_features(self.module, lambda: self.forward(batch))

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
        counters, which are no part of the vector, as they are here. Of adapters, only what travels.
        """
        only_trained = getattr(self.module, "only_trained_travels", False)
        flat = torch.from_numpy(np.array(vector, dtype=np.float32))
        slots = {id(tensor): slot for slot, tensor in zip(self.slots, self._tensors(), strict=True)}
        named = self.module.state_dict(keep_vars=True).items()
        return {
            name: _plain(_view(flat, slots[id(tensor)]) if id(tensor) in slots else tensor.detach().cpu())
            for name, tensor in named
            if isinstance(tensor, Tensor) and (id(tensor) in slots or not only_trained)
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


def find_last_linear(module: nn.Module) -> nn.Linear | None:
    """A module's last linear layer, if it has one; what goes into it are the features."""
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return linear[-1] if linear else None


def with_features(module: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What goes into a module's last linear layer in a pass through it, as float32, and what comes out.

    Args:
        module: With the layer.
        run: Makes the pass.
    """
    seen: list[Tensor] = []
    watch = last_linear(module).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        outputs = run()
    finally:
        watch.remove()
    return seen[-1].float(), outputs


def last_linear(module: nn.Module) -> nn.Linear:
    """A module's last linear layer.

    Raises:
        InputError: It has none.
    """
    found = find_last_linear(module)
    if found is None:
        raise InputError(f"model {type(module).__name__} has no linear layer to take features from")
    return found


def _made(factory: Factory, input_shape: Shape, classes: int) -> Any:
    """What a factory makes; a user's may raise anything."""
    try:
        return factory(input_shape, classes)
    except InputError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the model cannot be made for points of shape {input_shape} and {classes} outputs: "
            f"{reason} ({Path(last.filename).name}:{last.lineno})"
        ) from error


def build_network(
    factory: Factory, input_shape: Shape, classes: int, seed: int, target: Target | None = None
) -> Network:
    """A fresh network; the same seed gives the same initial parameters.

    Args:
        factory: Makes the module.
        input_shape: Shape of a point.
        classes: Number of outputs.
        seed: Of the initial parameters.
        target: What it predicts; None: a class.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _made(factory, input_shape, classes)
    if not isinstance(module, nn.Module):
        raise InputError(f"the model callable returned {type(module).__name__}, not a torch.nn.Module")
    return Network(module, input_shape, target)
