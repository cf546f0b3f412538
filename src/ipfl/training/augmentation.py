"""Changes of training batches that keep their labels: every epoch sees other versions of the same points.

What is drawn comes from torch's own generator, which a training seeds from the client's stream: the same run
gives the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ipfl.errors import InputError
from ipfl.system.plugins import load_callable

Augment = Callable[[Tensor], Tensor]
"""Takes a batch as the module would get it, and returns one of the same shape."""

CROP_SHARE = 8
"""An image is moved by up to so many parts of its height and width."""


def flip_crop(images: Tensor) -> Tensor:
    """Flips half of the images from left to right, and moves each by up to an eighth; new pixels are 0.

    Args:
        images: (n, channels, height, width).

    Raises:
        InputError: The batch holds no images.
    """
    if images.dim() != 4:
        shape = tuple(images.shape[1:])
        raise InputError(f"train.augment = 'flip_crop' needs images, not points of shape {shape}")
    count, _, height, width = images.shape
    down, right = max(1, height // CROP_SHARE), max(1, width // CROP_SHARE)
    tops = torch.randint(0, 2 * down + 1, (count,))
    lefts = torch.randint(0, 2 * right + 1, (count,))
    is_flipped = torch.rand(count) < 0.5
    flipped = torch.where(is_flipped[:, None, None, None].to(images.device), images.flip(3), images)
    padded = pad(flipped, (right, right, down, down))
    moves = zip(padded, tops.tolist(), lefts.tolist(), strict=True)
    return torch.stack([image[:, top : top + height, left : left + width] for image, top, left in moves])


@cache
def find_augment(name: str) -> Augment:
    """The change that `train.augment` names, whose results are checked.

    Raises:
        InputError: It cannot be imported.
    """
    found = flip_crop if name == "flip_crop" else load_callable(name, "augment")
    return partial(augmented, found)


def augmented(augment: Augment, inputs: Tensor) -> Tensor:
    """A batch, changed; it must keep its shape.

    Raises:
        InputError: The user's own function returned something else.
    """
    changed = augment(inputs)
    if not isinstance(changed, Tensor) or changed.shape != inputs.shape:
        got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise InputError(f"train.augment returned {got} for a batch of shape {tuple(inputs.shape)}")
    return changed
