"""Parts of a network by name: its body, head, norms and adapters, and where they lie in the flat vector.

The head is the last linear layer, and the body all else. A module can say otherwise, and name parts of its
own, with an attribute `parts`: a list of prefixes of its parameters' names, or a function of such a name.

    class Net(nn.Module):
        parts = {"head": ["hidden", "out"], "biases": lambda name: name.endswith("bias")}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ipfl.core import Vector
from ipfl.errors import InputError, unknown
from ipfl.training.network import find_last_linear

ParameterNames = Sequence[str] | Callable[[str], bool]
"""Prefixes of the names of parameters and buffers, or a function of such a name."""

PARTS = ("body", "head", "norms", "adapters")
NOT = "not "
"""Before the name of a part: all but it."""


@dataclass(frozen=True)
class NetworkPart:
    """Where a part of a network lies in its flat vector."""

    stretches: tuple[slice, ...]
    """In ascending order."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return sum(place.stop - place.start for place in self.stretches)

    def of(self, vector: Vector) -> Vector:
        """The part of a vector."""
        return np.concatenate([vector[place] for place in self.stretches])

    def put(self, vector: Vector, values: Vector) -> Vector:
        """A copy of a vector with this part in it.

        Raises:
            InputError: The values are too many or too few.
        """
        if values.shape != (self.size,):
            raise InputError(f"a part of {self.size} numbers cannot be made of {values.shape}")
        changed, position = vector.copy(), 0
        for place in self.stretches:
            changed[place] = values[position : position + place.stop - place.start]
            position += place.stop - place.start
        return changed

    def holds(self, start: int) -> bool:
        """Whether what begins there belongs to it."""
        return any(place.start <= start < place.stop for place in self.stretches)


def find_part(module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> list[str]:
    """Names of the tensors that a part has.

    Args:
        module: The network.
        tensors: What is in its flat vector, by name.
        name: Of the part; after `not `, of what it is not.

    Raises:
        InputError: There is no such part, or nothing in it.
    """
    if name.startswith(NOT):
        other = set(find_part(module, tensors, name.removeprefix(NOT)))
        found = [tensor for tensor in tensors if tensor not in other]
        lacks = f"has nothing but its {name.removeprefix(NOT)}"
    else:
        found = _names_in_part(module, tensors, name)
        lacks = f"has no {name}"
    if not found:
        raise InputError(f"model {type(module).__name__} {lacks}")
    return found


def _names_in_part(module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> list[str]:
    """The same of a part without `not`; perhaps nothing."""
    own: Mapping[str, ParameterNames] = getattr(module, "parts", {})
    if name in own:
        return [tensor for tensor in tensors if _is_selected(tensor, own[name])]
    if name == "body":
        return find_part(module, tensors, NOT + "head")
    if name == "adapters":  # as the package peft calls them
        return [tensor for tensor in tensors if "lora_" in tensor]
    if name == "head":
        layers: list[nn.Module] = [layer for layer in [find_last_linear(module)] if layer is not None]
    elif name == "norms":
        layers = [layer for layer in module.modules() if is_norm(layer)]
    else:
        raise unknown("part", name, [*PARTS, *own])
    ids = _ids(layers)
    return [key for key, tensor in tensors.items() if id(tensor) in ids]


def _is_selected(name: str, selection: ParameterNames) -> bool:
    if callable(selection):
        return selection(name)
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in selection)


def _ids(layers: Iterable[nn.Module]) -> set[int]:
    """Of the parameters and buffers that layers have themselves."""
    return {
        id(tensor)
        for layer in layers
        for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    }


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer normalises: of torch, or by its name."""
    is_torchs = isinstance(layer, _NormBase | nn.LayerNorm | nn.GroupNorm)
    return is_torchs or type(layer).__name__.endswith("Norm")
