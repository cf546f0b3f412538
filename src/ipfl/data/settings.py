"""The section `[task]` of a config: what is learned by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ipfl.core.sections import MAX_INT32, Section
from ipfl.data.targets import TargetKind

DATASET = "digits"
"""Data set of the default task."""


class TaskConfig(Section):
    """What is learned by whom: data, hidden distributions, partition over clients, model."""

    dataset: str = Field(
        DATASET, description="see `ipfl datasets`; `npz` reads the file in `path`; or `module:callable`"
    )
    predict: TargetKind = Field(
        "classes",
        description="what y of your own file holds: classes | multilabel: 0 and 1, (n, labels) | "
        "regression: numbers, (n,) or (n, outputs)",
    )
    path: Path | None = Field(None, description='a user\'s .npz file, for dataset = "npz"')
    data_dir: Path | None = Field(
        None, description="folder with .npz files of the data sets (else $IPFL_DATA, else the download cache)"
    )
    distributions: str = Field(
        "permuted",
        description="hidden distributions: rotated[:d] | permuted[:d] | halves | groups[:d] | natural | iid",
    )
    partition: str = Field(
        "10:90",
        description="how each client mixes them: a:b | linear | random | classes:c | dirichlet:α | natural",
    )
    swap_test_mix: bool = Field(
        False, description="test data mixes the distributions the other way round than training data"
    )
    clients: int = Field(20, ge=1, le=MAX_INT32, description="number of clients N, the unseen ones included")
    samples: int | None = Field(
        60,
        ge=1,
        le=MAX_INT32,
        description="training samples (train + probe) per client; "
        "omitted with another data set than the default one: all there are",
    )
    sizes: Literal["equal", "unequal"] = Field(
        "equal", description="same number of samples for all, or log-normal sizes around it"
    )
    size_spread: float = Field(0.5, gt=0, description="sigma of the log-normal sizes")
    label_noise: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        (), description="shares of wrong labels, dealt out to the clients in turn: data of graded quality"
    )
    probe: float = Field(0.2, gt=0, lt=1, description="share of the samples held back to score models")
    test_samples: int = Field(100, ge=1, le=MAX_INT32, description="test samples per client, at most")
    server_samples: int = Field(
        0, ge=0, le=MAX_INT32, description="samples per distribution in the server's own holdout"
    )
    unseen: int = Field(
        0, ge=0, le=MAX_INT32, description="of the clients, how many are held back from training"
    )
    drift_round: int | None = Field(
        None, ge=1, le=MAX_INT32, description="round at which some clients change distribution"
    )
    drift_share: float = Field(0.2, gt=0, le=1, description="share of the clients that change at drift_round")
    model: str = Field(
        "auto",
        description="auto: cnn for images, cnn1d for sequences, else mlp | cnn | resnet8 | mlp | softmax | "
        "cnn1d | lstm | transformer | hf:PATH_OR_NAME: adapters of a pre-trained language model | "
        "`module:callable` (input_shape, classes) → nn.Module",
    )

    @model_validator(mode="before")
    @classmethod
    def _samples_of_other_data(cls, given: Any) -> Any:
        """The default number of samples fits the default data set; of any other, all are used."""
        if isinstance(given, dict) and given.get("dataset", DATASET) != DATASET:
            return {"samples": None, **given}
        return given
