"""Small networks with all parts: a body, norms and a head; what tests of every method train."""

from __future__ import annotations

import math

import torch
from torch import nn

from ipfl.methods import method_class


class BatchNormed(nn.Sequential):
    """A hidden layer of 8 with BatchNorm."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        inner = nn.Linear(math.prod(shape), 8)
        super().__init__(nn.Flatten(), inner, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


class LayerNormed(nn.Sequential):
    """The same with LayerNorm, which mixes no points."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        inner = nn.Linear(math.prod(shape), 8)
        super().__init__(nn.Flatten(), inner, nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, classes))


def small_model(method: str) -> str:
    """The name of the smallest network that has the parts which a method needs."""
    return f"{__name__}:BatchNormed" if method_class(method).needs_parts else "softmax"


class Scaled(nn.Module):
    """Two layers whose training can be done by hand: logits (h_0·b·x, h_1·b·x); vector (b, h_0, h_1)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 2)."""
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Standardised(nn.Module):
    """BatchNorm, then logits (h_0·z, h_1·z); vector (γ, β, h_0, h_1, running mean, running variance)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(1), nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 2)."""
        return self.head(self.norm(x))  # type: ignore[no-any-return]
