"""A client's model as a file for other programs: safetensors or ONNX."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import save

from ipfl.errors import InputError
from ipfl.results.client_model import ClientModel
from ipfl.system.files import atomic_write, remove

Format = Literal["safetensors", "onnx"]
"""`safetensors` has the parameters, by the network's names; `onnx` is a program that takes raw points."""
EXAMPLE_POINTS = 2
"""Points that a program is recorded with; it takes any number of them."""


def check_model_format(name: str) -> Format:
    """The format of that name.

    Raises:
        InputError: There is none, or it needs a package that is not installed.
    """
    if name not in get_args(Format):
        raise InputError(f"unknown format {name!r} (known: {', '.join(get_args(Format))})")
    if name == "onnx" and not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise InputError('onnx is not installed; install the extra with: pip install "ipfl[onnx]"')
    return name  # type: ignore[return-value]


def export_model(model: ClientModel, path: Path | str, format: Format = "safetensors") -> None:
    """Writes a model to a file, whole or not at all.

    Args:
        model: What `Result.model` returned.
        path: Where to.
        format: `safetensors` or `onnx`.

    Raises:
        InputError: The network does something that the format cannot hold.
    """
    path, format = Path(path), check_model_format(format)
    with atomic_write(path) as draft:
        if format == "safetensors":
            tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
            draft.write_bytes(save(tensors))
            return
        example = torch.zeros((EXAMPLE_POINTS, *model.input_shape), dtype=model.input_dtype or torch.float32)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of things that concern no user of this function
                _save_onnx(model, example, draft)
        except OSError:
            raise
        except Exception as error:  # whatever the user's network does in there
            remove(draft)
            reason = " ".join(str(error.__cause__ or error).split())[:200]
            raise InputError(f"the network cannot be exported as onnx: {reason}") from error


def _save_onnx(model: ClientModel, example: torch.Tensor, path: Path) -> None:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that we do not need
    program = torch.onnx.export(
        model,
        (example,),
        input_names=["points"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(path), external_data=False)
