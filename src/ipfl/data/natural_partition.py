"""The natural partition: each group (writer, person) is a client, with its own training and test points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TaskConfig
from ipfl.data.dataset import Dataset
from ipfl.data.federated import Allocation, ClientPoints, PoolPoints
from ipfl.errors import InputError

MIN_GROUP_POINTS = 5
"""Training points that a group needs to become a client."""
MAX_LISTED_CLIENTS = 5
"""Names of clients in a message."""


def allocate_natural(
    dataset: Dataset,
    task: TaskConfig,
    random: np.random.Generator,
) -> Allocation:
    """Makes clients of groups: all of them in their order, or some that are chosen at random.

    Args:
        dataset: A data set with groups.
        task: `clients` groups are chosen among those with enough points, or all taken if it is None; then
            `small_clients` says what becomes of the others. A client gets `samples` training points at most.
        random: Draws the groups and the order of their points.

    Raises:
        InputError: There are no groups, or too few with enough points.
    """
    if dataset.group_train is None or dataset.group_test is None:
        raise InputError(
            f"{dataset.name} does not say whose points they are: natural does not apply; for files, name the "
            'column of the client (client), or have the points dealt out (partition = "dirichlet:0.5")'
        )
    if task.samples is not None and task.samples < 2:
        raise InputError(f"task.samples = {task.samples}, but a client needs at least 2")
    groups = int(max(dataset.group_train.max(), dataset.group_test.max())) + 1
    train, test = _points_by_group(dataset.group_train, groups), _points_by_group(dataset.group_test, groups)
    large = [group for group in range(groups) if len(train[group]) >= MIN_GROUP_POINTS and len(test[group])]
    clients = task.clients
    notes: tuple[str, ...] = ()
    if clients is None:
        sizes = {group: len(train[group]) + len(test[group]) for group in range(groups)}
        small = {group: size for group, size in sizes.items() if size and group not in set(large)}
        notes = _check_sizes(dataset, len(large), small, task.small_clients == "leave_out")
    elif clients > len(large):
        raise InputError(
            f"{clients} clients are needed, {dataset.name} has {len(large)} with at least "
            f"{MIN_GROUP_POINTS} training points and a test point: lower task.clients"
        )
    chosen = large if clients is None else random.permutation(large)[:clients].tolist()
    is_used = np.zeros(len(dataset.y_train), dtype=np.bool_)
    made: list[ClientPoints] = []
    for group in chosen:
        own_train = random.permutation(train[group])[: task.samples]
        own_test = random.permutation(test[group])[: task.test_samples]
        is_used[own_train] = True
        made.append(ClientPoints.of_one_distribution(own_train, own_test, 0, task.probe))
    server = _draw_server_points(train, is_used, task.server_samples, random) if task.server_samples else []
    holdout = PoolPoints.of_one_distribution(np.concatenate([test[group] for group in chosen]), 0)
    return Allocation(made, [holdout], server, chosen, notes)


def _check_sizes(dataset: Dataset, large: int, small: Mapping[int, int], leave_out: bool) -> tuple[str, ...]:
    """Notes where every group becomes a client.

    Args:
        dataset: A data set with groups.
        large: How many have enough points.
        small: Points of each group that has too few.
        leave_out: Whether these are left out.

    Raises:
        InputError: Some have too few points and are not to be left out, or nobody is left.
    """
    names = dataset.group_names
    few = [f"{group if names is None else names[group]} ({count})" for group, count in small.items()]
    listed = ", ".join(few[:MAX_LISTED_CLIENTS]) + (", …" if len(few) > MAX_LISTED_CLIENTS else "")
    needed = f"{MIN_GROUP_POINTS} points to train on and one to test on"
    if few and (not leave_out or not large):
        advice = "" if not large else ': give them more, or set small_clients = "leave_out"'
        raise InputError(
            f"{dataset.name}: {len(few)} of {large + len(few)} clients have too few points, a client needs "
            f"{needed}: {listed}{advice}"
        )
    said = f"{dataset.name}: {large} clients, all there are"
    return (f"{said} but {len(few)} with fewer than {needed}: {listed}" if few else said,)


def _points_by_group(group: NDArray[np.int64], groups: int) -> list[NDArray[np.int64]]:
    """Positions of the points of each group."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, groups)))


def _draw_server_points(
    train: list[NDArray[np.int64]], is_used: NDArray[np.bool_], count: int, random: np.random.Generator
) -> list[PoolPoints]:
    """Draws `count` points that no client has."""
    free = np.concatenate(train)
    free = free[~is_used[free]]
    if len(free) < count:
        raise InputError(
            f"{count} training points for the server are needed, {len(free)} are left over: "
            "lower task.server_samples, task.samples or task.clients"
        )
    return [PoolPoints.of_one_distribution(random.permutation(free)[:count], 0)]
