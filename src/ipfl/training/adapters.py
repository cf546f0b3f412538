"""Adapters of large pre-trained language models (LoRA, extra `llm`): only what is trained of them travels.

`task.model = "hf:PATH_OR_NAME"` names a model of the Hugging Face hub, or a folder that `save_pretrained`
wrote. Its own parameters are frozen and the same at every client, who has them already; the low-rank matrices
of its attention layers and the classification layer are trained. The flat vector of such a network holds
these alone: they are sent, mixed, scored and paid for like any other model.

Points are token ids (n, steps); the tokenizer is the user's. Steps with the model's padding id are not
attended to.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ipfl.errors import InputError
from ipfl.training.architectures import PRETRAINED, Shape

ADAPTER_RANK = 8
"""Of the low-rank matrices."""
ADAPTER_ALPHA = 16
"""What their product is multiplied by, times the rank."""


class AdaptedModel(nn.Module):
    """A frozen language model with trained adapters, as a module from token ids to class scores."""

    only_trained_travels = True

    def __init__(self, model: nn.Module, padding: int | None):
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores of a batch of token ids (n, steps)."""
        mask = torch.ones_like(tokens) if self.padding is None else (tokens != self.padding).long()
        scores: Tensor = self.model(input_ids=tokens, attention_mask=mask).logits
        return scores


@dataclass(frozen=True)
class AdapterFactory:
    """Makes `AdaptedModel`s of a pre-trained model, called with (input_shape, classes).

    Raises:
        InputError: The extra `llm` is not installed; when it is called: there is no such model, or its points
            are no token ids.
    """

    name: str

    def __post_init__(self) -> None:
        for package in ("transformers", "peft"):
            if find_spec(package) is None:
                raise InputError(
                    f"model {PRETRAINED + self.name!r} needs the extra llm: pip install 'ipfl[llm]' "
                    f"({package} is missing)"
                )

    @property
    def reference(self) -> str:
        """What `model_factory` finds it by."""
        return PRETRAINED + self.name

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """Fresh adapters around the model, which a process loads once."""
        if len(shape) != 1:
            raise InputError(
                f"model {PRETRAINED + self.name!r} needs token ids (n, steps), not points of shape {shape}"
            )
        return _adapt(_load(self.name, classes))


@cache
def _load(name: str, classes: int) -> Any:
    """The pre-trained model with a classification layer, once in a process: adapters share its parameters."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if (name.count("/") > 1 or name.startswith((".", "~"))) and not Path(name).exists():
        raise InputError(f"model {PRETRAINED + name!r} cannot be loaded: there is no such folder")
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            name, num_labels=classes, dtype=torch.float32
        )
    except Exception as error:  # no such folder, no such kind of model: the library raises many types
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model {PRETRAINED + name!r} cannot be loaded: {reason}") from error


def _adapt(pretrained: Any) -> AdaptedModel:
    """Fresh adapters around a model; its own parameters are shared, not copied."""
    from peft import LoraConfig, TaskType, get_peft_model
    from peft.utils import ModulesToSaveWrapper

    shared = {id(tensor): tensor for tensor in [*pretrained.parameters(), *pretrained.buffers()]}
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=ADAPTER_RANK, lora_alpha=ADAPTER_ALPHA)
    try:
        adapted: Any = get_peft_model(copy.deepcopy(pretrained, shared), config)
    except ValueError as error:
        kind = pretrained.config.model_type
        reason = f"the attention layers of a {kind!r} are not known"
        raise InputError(f"{reason}: use another kind of model, such as bert, roberta or llama") from error
    for part in adapted.modules():
        if isinstance(part, ModulesToSaveWrapper):  # trained as a whole: the classification layer
            _start_from_seed(part.modules_to_save)
    return AdaptedModel(adapted, pretrained.config.pad_token_id)


def _start_from_seed(layers: nn.Module) -> None:
    """Draws the parameters of linear layers anew, as torch's generator stands."""
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
