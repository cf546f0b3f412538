"""The section `[train]` of a config: local training, the same for all methods."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ipfl.core.sections import MAX_INT32, Section


class TrainConfig(Section):
    """Local training, the same for all methods."""

    lr: float = Field(0.1, gt=0, description="learning rate of plain SGD")
    batch_size: int = Field(32, ge=1, le=MAX_INT32, description="samples per step")
    epochs: int = Field(2, ge=1, le=MAX_INT32, description="passes over the client's train part per training")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 pull towards zero")
    precision: Literal["float32", "bf16", "auto"] = Field(
        "float32",
        description="of the passes through the network in training; bf16 needs hardware that has it; "
        "auto: bf16 if a short trial before the first round says that it is faster",
    )
    device: str = Field(
        "cpu",
        pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$",
        description="where networks are trained: cpu, cuda, cuda:N or mps; auto: a GPU if there is one",
    )
    per_round: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="client trainings per round, the budget all methods share; omitted: half of the clients",
    )
    use_probe: bool = Field(
        False,
        description="methods that need no held-back points (probe, goal) train on those of probe as well",
    )
    min_clients: int = Field(
        1,
        ge=1,
        description="clients whose updates a round needs; with fewer it is rolled back and nothing is paid",
    )
