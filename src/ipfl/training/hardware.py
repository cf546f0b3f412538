"""What networks are trained on, and in which precision: what is there, and what the processor can do.

Both are decided once, before the first round (`decide_hardware`), and recorded: every process of a run, and
every later one that resumes it, then computes the same. Never measured on a GPU: none was available.
"""

from __future__ import annotations

import ctypes
import sys

import torch

from ipfl.config.train_section import TrainConfig
from ipfl.errors import InputError
from ipfl.training.losses import find_loss
from ipfl.training.network import CPU, Network

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Numbers of the options in glibc's `malloc.h`."""

LARGEST_KEPT = 2**30
"""Blocks of up to so many bytes are kept; larger ones are data, not the tensors of a step."""
NEVER_TRIM = -1


def find_device(name: str) -> torch.device:
    """The device of a name.

    Args:
        name: As in `train.device`; `auto` is the first GPU, or the CPU if there is none.

    Raises:
        InputError: This machine has no such device.
    """
    # Counting leaves CUDA untouched, so that workers can still be forked; `is_available` does not.
    count = torch.cuda.device_count()
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if count else "mps" if has_mps else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"train.device is {name!r}, but this machine has {count or 'no'} CUDA devices")
    if device.type == "mps" and not has_mps:
        raise InputError("train.device is 'mps', but this machine has none")
    return device


def prepare_network(network: Network, settings: TrainConfig) -> None:
    """Puts a network on its device, in the process that will use it, and sets its precision and its loss.

    Raises:
        InputError: This machine has no such device.
    """
    if settings.precision == "auto":
        raise ValueError("the precision is not settled yet")
    device = find_device(settings.device)
    if device.type == "cuda":  # the same bits every time, and float32 means float32
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False
    if device != network.device:
        network.move(device)
    network.precision = settings.precision
    network.loss = find_loss(settings.loss, network.target)


def decide_hardware(settings: TrainConfig) -> TrainConfig:
    """The settings without `auto`.

    Raises:
        InputError: This machine has no such device.
    """
    device = find_device(settings.device)
    found: dict[str, str] = {"device": str(device)}
    if settings.precision == "auto":
        found["precision"] = "bf16" if device == CPU and has_bf16() else "float32"
    return settings.model_copy(update=found)


def has_bf16() -> bool:
    """Whether this processor has instructions for bfloat16; others emulate it, many times slower."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def keep_freed_memory() -> bool:
    """Keeps memory that a training step frees for the next one, here and in processes forked from here.

    By default glibc gives blocks of 32 MB and less back to the system, and gets them again, page by page, in
    the next step: a quarter of the time of a training of 500 images with the paper's CNN. What is computed
    does not change.

    Returns:
        Whether there is an allocator that can be set so: that of glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    is_set = library.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT), library.mallopt(M_TRIM_THRESHOLD, NEVER_TRIM)
    return all(is_set)
