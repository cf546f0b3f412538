"""From the settings of a task to its federated data: the data set, its hidden distributions, who holds what.

Also chosen here: the unseen clients, and who takes part in a drift (`ipfl.data.drift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ipfl.core import stream
from ipfl.data.allocation import allocate
from ipfl.data.catalogue import load_dataset
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import Distribution, make_distributions, parse_distributions
from ipfl.data.federated import Allocation, FederatedData, LabelNoise, PartitionedDataset
from ipfl.data.partitions import Partition, parse_partition
from ipfl.errors import InputError
from ipfl.system.plugins import load_callable

if TYPE_CHECKING:
    from ipfl.config.task_section import TaskConfig
    from ipfl.data.drift import Drift


def federate(task: TaskConfig, seed: int, dataset: Dataset | None = None) -> FederatedData:
    """Makes the federated data that a task describes; the same task and seed give the same bytes.

    `task.dataset` may be `module:callable`. If that returns a `Dataset`, it is partitioned like any other; if
    it returns a `FederatedData` (see `from_clients`), that is used as it is, and the settings about
    distributions, partition and sizes do not apply.

    Args:
        task: The settings.
        seed: Of the random choices.
        dataset: Whose points are given out; None: the one that the task names.

    Raises:
        InputError: Settings contradict each other, or there is too little data for them.
    """
    if dataset is None and ":" in task.dataset:
        given = _call_user_code(task.dataset)
        if not isinstance(given, Dataset):
            return given
        dataset = given
    partition = parse_partition(task.partition)
    _check_settings(task, partition)  # before a data set is read, or even downloaded
    if dataset is None:
        dataset = load_dataset(task.dataset, path=task.path, settings=task)
    _check_class_settings(task, partition, dataset)
    if task.clients is not None and task.clients > len(dataset.y_train):
        raise InputError(
            f"task.clients = {task.clients}, but {dataset.name} has {len(dataset.y_train)} training points"
        )
    return _partition(dataset, partition, task, seed)


def _call_user_code(reference: str) -> Dataset | FederatedData:
    """The data that the user's own `module:callable` returns."""
    make = load_callable(reference, "dataset")
    try:
        given = make()
    except Exception as error:  # it is the user's code, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"dataset {reference!r} raised {reason}") from error
    if not isinstance(given, Dataset | FederatedData):
        raise InputError(
            f"dataset {reference!r} returned {type(given).__name__}, expected Dataset or FederatedData"
        )
    return given


def _check_settings(task: TaskConfig, partition: Partition) -> None:
    """Refuses settings that contradict each other."""
    kind, count = parse_distributions(task.distributions)
    if (kind == "natural") != (partition.kind == "natural"):
        raise InputError(
            f"distributions = {task.distributions!r} with partition = {task.partition!r}: "
            "natural is needed in both or in neither"
        )
    if kind in ("halves", "groups") and partition.is_by_class:
        raise InputError(
            f"partition = {task.partition!r} chooses classes, and so does distributions = "
            f"{task.distributions!r}: use rotated, permuted or iid with it"
        )
    if task.swap_test_mix and (count == 1 or partition.is_by_class):
        raise InputError(
            "swap_test_mix swaps a mixture of distributions: it needs two or more, and a:b, linear or random"
        )
    if task.clients is not None:
        _check_unseen(task, task.clients)


def _check_unseen(task: TaskConfig, clients: int) -> None:
    if task.unseen >= clients:
        raise InputError(f"unseen = {task.unseen} of {clients} clients: no client is left to train with")


def _check_class_settings(task: TaskConfig, partition: Partition, dataset: Dataset) -> None:
    """Refuses what chooses or renames classes where there are none."""
    if dataset.target == "classes":
        return
    if task.label_noise:
        raise InputError(f"task.label_noise draws wrong classes, but the target is {dataset.target}")
    if parse_distributions(task.distributions)[0] in ("permuted", "halves", "groups"):
        raise InputError(
            f"distributions = {task.distributions!r} needs classes, but {dataset.name} has the target "
            f"{dataset.target!r}: use rotated, iid or natural"
        )
    if partition.is_by_class:
        raise InputError(
            f"partition = {task.partition!r} needs classes, but {dataset.name} has the target "
            f"{dataset.target!r}: use a:b, linear, random or natural"
        )


def _partition(dataset: Dataset, partition: Partition, task: TaskConfig, seed: int) -> PartitionedDataset:
    if partition.kind == "natural":
        from ipfl.data.natural_partition import allocate_natural

        allocation = allocate_natural(dataset, task, stream(seed, "data", "natural"))
        _check_unseen(task, len(allocation.clients))
        distributions = [Distribution() for _ in allocation.holdouts]
    else:
        distributions = make_distributions(task.distributions, dataset, seed)
        allocation = allocate(dataset, partition, distributions, task, seed)
    unseen, drift = _choose_unseen_and_drift(task, allocation, len(distributions), seed)
    return PartitionedDataset(
        dataset,
        partition=task.partition,
        distributions=distributions,
        allocation=allocation,
        unseen=unseen,
        drift=drift,
        noise=LabelNoise.deal(task.label_noise, len(allocation.clients), seed) if task.label_noise else None,
    )


def _choose_unseen_and_drift(
    task: TaskConfig, allocation: Allocation, distributions: int, seed: int
) -> tuple[tuple[int, ...], Drift | None]:
    majorities = [points.majority(distributions) for points in allocation.clients]
    unseen = choose_unseen(majorities, task.unseen, stream(seed, "data", "unseen"))
    if task.drift_round is None:
        return unseen, None
    taking_part = [client for client in range(len(majorities)) if client not in unseen]
    from ipfl.data.drift import choose_drift

    random = stream(seed, "data", "drift")
    return unseen, choose_drift(majorities, taking_part, task.drift_round, task.drift_share, random)


def choose_unseen(
    majorities: Sequence[int | None], count: int, random: np.random.Generator
) -> tuple[int, ...]:
    """Chooses the unseen clients at random, as evenly as possible over the majority distributions."""
    chosen_before: dict[int | None, int] = {}
    ranked = []
    for client in random.permutation(len(majorities)).tolist():
        rank = chosen_before.get(majorities[client], 0)
        chosen_before[majorities[client]] = rank + 1
        ranked.append((rank, client))
    ranked.sort(key=lambda entry: entry[0])  # first one client of each distribution, then a second, …
    return tuple(sorted(client for _, client in ranked[:count]))
