"""The networks for sequences of features, or of token ids: convolutions, an LSTM and a small transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ipfl.errors import InputError
from ipfl.training.architectures import Shape

HIDDEN_WIDTH = 64
"""Of the hidden layers."""
HEADS = 4
BLOCKS = 2


def sequence_shape(shape: Shape, model: str) -> tuple[int, int]:
    """Steps and features of sequences; square ones, which are taken for grey images, included.

    Raises:
        InputError: These are no sequences.
    """
    if len(shape) == 3 and shape[2] == 1:
        shape = shape[:2]
    if len(shape) != 2:
        raise InputError(
            f"model {model!r} needs sequences (n, steps, features), not points of shape {shape}; use 'mlp'"
        )
    return shape[0], shape[1]


def as_sequences(x: Tensor) -> Tensor:
    """A batch of sequences; square ones arrive as grey images (n, 1, steps, features)."""
    return x[:, 0] if x.dim() == 4 else x


class CNN1D(nn.Module):
    """Two convolutions along the steps of a sequence, their mean over the steps, then classes."""

    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        _, features = sequence_shape(shape, "cnn1d")
        self.conv1 = nn.Conv1d(features, HIDDEN_WIDTH, 5, padding=2)
        self.conv2 = nn.Conv1d(HIDDEN_WIDTH, HIDDEN_WIDTH, 5, padding=2)
        self.hidden = nn.Linear(HIDDEN_WIDTH, HIDDEN_WIDTH)
        self.out = nn.Linear(HIDDEN_WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch (n, steps, features)."""
        x = as_sequences(x).transpose(1, 2)
        x = torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean(dim=2)
        return self.out(torch.relu(self.hidden(x)))  # type: ignore[no-any-return]


class SequenceModel(nn.Module):
    """What models of sequences share: steps of features, or of token ids, become `HIDDEN_WIDTH` numbers."""

    def __init__(self, shape: Shape, name: str, tokens: int | None):
        super().__init__()
        self.embed: nn.Module
        if len(shape) == 1:
            if tokens is None:
                raise InputError(
                    f"model {name!r} needs sequences (n, steps, features), or token ids (n, steps), "
                    "whole numbers from 0 on"
                )
            self.steps = shape[0]
            self.embed = nn.Embedding(tokens, HIDDEN_WIDTH)
        else:
            self.steps, features = sequence_shape(shape, name)
            self.embed = nn.Linear(features, HIDDEN_WIDTH)

    def vectors(self, x: Tensor) -> Tensor:
        """(n, steps, WIDTH)."""
        return self.embed(as_sequences(x))  # type: ignore[no-any-return]


class LSTM(SequenceModel):
    """One LSTM layer; the mean of its outputs over the steps, then classes."""

    def __init__(self, shape: Shape, classes: int, tokens: int | None = None):
        super().__init__(shape, "lstm", tokens)
        self.lstm = nn.LSTM(HIDDEN_WIDTH, HIDDEN_WIDTH, batch_first=True)
        self.out = nn.Linear(HIDDEN_WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch (n, steps, features), or of token ids (n, steps)."""
        return self.out(self.lstm(self.vectors(x))[0].mean(dim=1))  # type: ignore[no-any-return]


class Transformer(SequenceModel):
    """A small encoder: learned positions, two blocks of attention, the mean over the steps, then classes."""

    def __init__(self, shape: Shape, classes: int, tokens: int | None = None):
        super().__init__(shape, "transformer", tokens)
        self.positions = nn.Parameter(torch.randn(self.steps, HIDDEN_WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(attention_block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(HIDDEN_WIDTH)
        self.out = nn.Linear(HIDDEN_WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch (n, steps, features), or of token ids (n, steps)."""
        seen = self.blocks(self.vectors(x) + self.positions)
        return self.out(self.norm(seen).mean(dim=1))  # type: ignore[no-any-return]


def attention_block() -> nn.Module:
    """Attention of all steps to each other, then two linear layers, each beside a shortcut."""
    return nn.TransformerEncoderLayer(
        HIDDEN_WIDTH,
        HEADS,
        dim_feedforward=2 * HIDDEN_WIDTH,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
