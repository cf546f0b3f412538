"""From a task to a federation: the data set, its hidden distributions, and who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from ipfl.core import stream
from ipfl.core.plugins import load_callable
from ipfl.data.allocation import Demand, Planner, deal, pools
from ipfl.data.catalogue import load
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import Distribution, distributions, kind_of
from ipfl.data.federated import FederatedData
from ipfl.data.federation import Drift, Federation, Picks, Share, most, same
from ipfl.data.natural import natural
from ipfl.data.partitions import Partition, parse
from ipfl.data.roles import drift, held_back
from ipfl.errors import InputError

if TYPE_CHECKING:
    from ipfl.data.settings import TaskConfig


def _check(task: TaskConfig, partition: Partition) -> None:
    """Refuses settings that contradict each other."""
    kind, count = kind_of(task.distributions)
    if (kind == "natural") != (partition.kind == "natural"):
        raise InputError(
            f"distributions = {task.distributions!r} with partition = {task.partition!r}: "
            "natural is needed in both or in neither"
        )
    if kind in ("halves", "groups") and partition.by_class:
        raise InputError(
            f"partition = {task.partition!r} chooses classes, and so does distributions = "
            f"{task.distributions!r}: use rotated, permuted or iid with it"
        )
    if task.swap_test_mix and (count == 1 or partition.by_class):
        raise InputError(
            "swap_test_mix swaps a mixture of distributions: it needs two or more, and a:b, linear or random"
        )
    if task.clients < 1:
        raise InputError("task.clients must be at least 1")
    if task.unseen >= task.clients:
        raise InputError(
            f"task.unseen = {task.unseen} of task.clients = {task.clients}: nobody is left to train with"
        )


def _mixed(
    task: TaskConfig, dataset: Dataset, partition: Partition, changes: list[Distribution], seed: int
) -> tuple[list[Share], list[Picks], list[Picks]]:
    """Shares, server points and test pools for every partition but the natural one."""
    weights = None
    if task.sizes == "unequal":
        weights = np.exp(stream(seed, "data", "sizes").normal(0.0, task.size_spread, task.clients))
    demand = Demand(
        clients=task.clients,
        samples=task.samples,
        weights=weights,
        probe=task.probe,
        test_samples=task.test_samples,
        server_samples=task.server_samples,
        synthetic=task.swap_test_mix,
    )
    places = pools(dataset, changes, partition.by_class)
    planner = Planner(demand, partition, places, len(changes), stream(seed, "data", "partition"))
    shares, server = deal(places, planner.plan(), stream(seed, "data", "deal"))
    holdouts = [same(np.flatnonzero(one.has(dataset.y_test)), number) for number, one in enumerate(changes)]
    return shares, server, holdouts


def federate(task: TaskConfig, seed: int) -> FederatedData:
    """The federation that a task describes; the same task and seed give the same bytes.

    `dataset` may be `module:callable`. If that returns a `Dataset`, it is partitioned like any other; if
    it returns a `FederatedData` (see `from_clients`), that is used as it is, and the settings about
    distributions, partition and sizes do not apply.

    Raises:
        InputError: When settings contradict each other, or there is too little data for them.
    """
    if ":" in task.dataset:
        made = load_callable(task.dataset, "dataset")()
        if hasattr(made, "parts") and hasattr(made, "holdout"):
            return cast(FederatedData, made)
        if not isinstance(made, Dataset):
            raise InputError(
                f"dataset {task.dataset!r} returned {type(made).__name__}, expected Dataset or FederatedData"
            )
        dataset = made
    partition = parse(task.partition)
    _check(task, partition)
    if ":" not in task.dataset:
        dataset = load(task.dataset, path=task.path, data_dir=task.data_dir)
    if task.clients > len(dataset.y_train):
        raise InputError(
            f"task.clients = {task.clients}, but {dataset.name} has {len(dataset.y_train)} training points"
        )
    if partition.kind == "natural":
        shares, server, holdouts = natural(
            dataset,
            clients=task.clients,
            samples=task.samples,
            probe=task.probe,
            test_samples=task.test_samples,
            server_samples=task.server_samples,
            random=stream(seed, "data", "natural"),
        )
        changes = [Distribution() for _ in holdouts]
    else:
        changes = distributions(task.distributions, dataset, seed)
        shares, server, holdouts = _mixed(task, dataset, partition, changes, seed)
    unseen, change = _roles(task, shares, len(changes), seed)
    return Federation(
        dataset,
        partition=task.partition,
        changes=changes,
        shares=shares,
        holdouts=holdouts,
        server=server,
        unseen=unseen,
        drift=change,
    )


def _roles(
    task: TaskConfig, shares: list[Share], distributions: int, seed: int
) -> tuple[tuple[int, ...], Drift | None]:
    majorities = [most((share.train, share.probe), distributions) for share in shares]
    unseen = held_back(majorities, task.unseen, stream(seed, "data", "unseen"))
    if task.drift_round is None:
        return unseen, None
    takes_part = [client for client in range(len(shares)) if client not in unseen]
    random = stream(seed, "data", "drift")
    return unseen, drift(majorities, takes_part, task.drift_round, task.drift_share, random)
