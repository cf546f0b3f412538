"""The section `[task]` of a config: what is learned by whom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ipfl.config.sections import Section
from ipfl.errors import InputError

DATASET = "digits"
"""Data set of the default task."""
TABLE_DATASETS = ("csv", "parquet", "dataframe")
"""Data sets whose points are the rows of a table."""
FILE_DATASETS = ("npz", "csv", "parquet", "images")
"""Data sets that are read from `path`."""
_SUFFIXES = {
    ".npz": "npz",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
"""What a file is, by the end of its name (without `.gz`)."""


TargetKind = Literal["classes", "multilabel", "regression"]


class TaskConfig(Section):
    """What is learned by whom: data, hidden distributions, partition over clients, model."""

    dataset: str = Field(
        DATASET,
        description="see `ipfl datasets`; npz | csv | parquet | images read `path`; or `module:callable`",
    )
    path: Path | None = Field(
        None, description="your own file or folder; without `dataset`, its name says what it is"
    )
    client: str | None = Field(None, description="csv, parquet: the column that says whose row it is")
    target: str | None = Field(None, description="csv, parquet: the column with the label")
    features: tuple[str, ...] = Field(
        (), description="csv, parquet: the columns to learn from; omitted: all but client and target"
    )
    categorical: tuple[str, ...] = Field(
        (), description="csv, parquet: columns of numbers that name categories; text always does"
    )
    class_names: tuple[str, ...] = Field(
        (),
        description="csv, parquet, images: the classes in their order, also those that do not occur here; "
        "omitted: those that occur, sorted",
    )
    standardize: Literal["server", "client", "none"] = Field(
        "server",
        description="csv, parquet: numbers to mean 0 and spread 1, by the sums of all clients at the server, "
        "or by each client alone",
    )
    image_size: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="images: width and height that all are scaled to; omitted: as they are",
    )
    predict: TargetKind = Field(
        "classes",
        description="what y of your own file holds: classes | multilabel: 0 and 1, (n, labels) | "
        "regression: numbers, (n,) or (n, outputs)",
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
    clients: int | None = Field(
        20,
        ge=1,
        description="number of clients N, the unseen ones included; omitted with natural: all there are",
    )
    small_clients: Literal["refuse", "leave_out"] = Field(
        "refuse", description="natural: what to do with clients that have too few points, if all are taken"
    )
    samples: int | None = Field(
        60,
        ge=1,
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
    test_samples: int = Field(100, ge=1, description="test samples per client, at most")
    server_samples: int = Field(0, ge=0, description="samples per distribution in the server's own holdout")
    unseen: int = Field(0, ge=0, description="of the clients, how many are held back from training")
    drift_round: int | None = Field(None, ge=1, description="round at which some clients change distribution")
    drift_share: float = Field(0.2, gt=0, le=1, description="share of the clients that change at drift_round")
    model: str = Field(
        "auto",
        description="auto: cnn for images, cnn1d for sequences, else mlp | cnn | small_cnn | resnet8 | mlp | "
        "softmax | cnn1d | lstm | transformer | hf:PATH_OR_NAME: adapters of a pre-trained language model | "
        "`module:callable` (input_shape, classes) → nn.Module",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Defaults that depend on other settings; what is given stays as it is."""
        if not isinstance(given, dict):
            return given
        if given.get("path") is not None and given.get("dataset") is None:
            given = {**given, "dataset": dataset_of(Path(str(given["path"])))}
        dataset, more = given.get("dataset", DATASET), dict[str, Any]()
        if dataset != DATASET:
            more["samples"] = None  # the default number fits the default data set
        if "natural" in (given.get("partition"), given.get("distributions")) or (
            dataset in (*TABLE_DATASETS, "images") and "partition" not in given
        ):
            more |= {"partition": "natural", "distributions": "natural", "clients": None}
        elif dataset in (*TABLE_DATASETS, "images"):
            more["distributions"] = "iid"  # nobody wants the labels of an own table permuted
        if dataset in TABLE_DATASETS:
            more["model"] = "mlp"
        return {**more, **given}

    @model_validator(mode="after")
    def _path_is_read(self) -> Self:
        """A file that nobody would read is refused: a run on other data would be a wrong result."""
        if self.path is not None and self.dataset not in FILE_DATASETS:
            raise ValueError(
                f"task.path is read with dataset = {' | '.join(FILE_DATASETS)}, not with {self.dataset!r}"
            )
        if self.clients is None and self.partition != "natural":
            raise ValueError("task.clients, their number, is needed for every task.partition but natural")
        return self


def dataset_of(path: Path) -> str:
    """What is in a file or folder, by its name: npz, csv, parquet or images.

    Raises:
        InputError: The name does not say it.
    """
    kind = _SUFFIXES.get(path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix.lower())
    if kind is None and not os.path.isdir(path):  # `Path.is_dir` raises for names that are too long
        raise InputError(
            f"path = {str(path)!r}: expected a file {', '.join(_SUFFIXES)} or a folder of images; "
            f"with another name, say what it is: dataset = {' | '.join(FILE_DATASETS)}"
        )
    return kind or "images"
