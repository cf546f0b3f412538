"""The natural partition: each group (writer, person) is a client, with its own training and test points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipfl.data.allocation import AllocationSettings
from ipfl.data.dataset import Dataset
from ipfl.data.federated import Allocation, ClientPoints, PoolPoints
from ipfl.errors import InputError

MIN_GROUP_POINTS = 5
"""Training points that a group needs to become a client."""


def allocate_natural(
    dataset: Dataset, settings: AllocationSettings, random: np.random.Generator
) -> Allocation:
    """Chooses groups at random among those with enough points; a client has the points of its group.

    Args:
        dataset: A data set with groups.
        settings: `samples` is the largest number of training points per client; None: all of the group.
        random: Draws the groups and the order of their points.

    Raises:
        InputError: There are no groups, or too few with enough points.
    """
    if dataset.group_train is None or dataset.group_test is None:
        raise InputError(f"{dataset.name} has no writers or persons: natural does not apply")
    if settings.samples is not None and settings.samples < 2:
        raise InputError(f"task.samples = {settings.samples}, but a client needs at least 2")
    groups = int(max(dataset.group_train.max(), dataset.group_test.max())) + 1
    train, test = _points_by_group(dataset.group_train, groups), _points_by_group(dataset.group_test, groups)
    large = [group for group in range(groups) if len(train[group]) >= MIN_GROUP_POINTS and len(test[group])]
    if settings.clients > len(large):
        raise InputError(
            f"{settings.clients} clients are needed, {dataset.name} has {len(large)} with at least "
            f"{MIN_GROUP_POINTS} training points and a test point: lower task.clients"
        )
    distribution = dataset.group_distribution
    if distribution is None:
        distribution = np.zeros(groups, dtype=np.int64)
    is_used = np.zeros(len(dataset.y_train), dtype=np.bool_)
    clients: list[ClientPoints] = []
    chosen = random.permutation(large)[: settings.clients].tolist()
    for group in chosen:
        own_train = random.permutation(train[group])[: settings.samples]
        own_test = random.permutation(test[group])[: settings.test_samples]
        is_used[own_train] = True
        number = int(distribution[group])
        clients.append(ClientPoints.of_one_distribution(own_train, own_test, number, settings.probe))
    server: list[PoolPoints] = []
    if settings.server_samples:
        server = _draw_server_points(train, is_used, distribution, settings.server_samples, random)
    return Allocation(clients, _holdouts(test, chosen, distribution, dataset.group_test), server)


def _points_by_group(group: NDArray[np.int64], groups: int) -> list[NDArray[np.int64]]:
    """Positions of the points of each group."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, groups)))


def _draw_server_points(
    train: list[NDArray[np.int64]],
    is_used: NDArray[np.bool_],
    distribution: NDArray[np.int64],
    count: int,
    random: np.random.Generator,
) -> list[PoolPoints]:
    """Draws `count` points of each distribution that no client has."""
    server = []
    for number in range(int(distribution.max()) + 1):
        free = np.concatenate([train[group] for group in np.flatnonzero(distribution == number)])
        free = free[~is_used[free]]
        if len(free) < count:
            raise InputError(
                f"{count} training points for the server are needed, {len(free)} are left over: "
                "lower task.server_samples, task.samples or task.clients"
            )
        server.append(PoolPoints.of_one_distribution(random.permutation(free)[:count], number))
    return server


def _holdouts(
    test: list[NDArray[np.int64]],
    chosen: list[int],
    distribution: NDArray[np.int64],
    group_test: NDArray[np.int64],
) -> list[PoolPoints]:
    """All test points of the chosen groups by distribution; where none was chosen, those of all groups."""
    holdouts = []
    for number in range(int(distribution.max()) + 1):
        found = [test[group] for group in chosen if distribution[group] == number]
        points = np.concatenate(found) if found else np.flatnonzero(distribution[group_test] == number)
        holdouts.append(PoolPoints.of_one_distribution(points, number))
    return holdouts
