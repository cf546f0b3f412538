"""The natural partition: each writer or person is a client, with its own training and test points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipfl.data.dataset import Dataset
from ipfl.data.federation import Picks, Share, probe_size, same
from ipfl.errors import InputError

ENOUGH = 5
"""Training points without which a group cannot be a client."""


def _by_group(group: NDArray[np.int64], groups: int) -> list[NDArray[np.int64]]:
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, groups)))


def _left_over(
    train: list[NDArray[np.int64]],
    used: NDArray[np.bool_],
    kinds: NDArray[np.int64],
    count: int,
    random: np.random.Generator,
) -> list[Picks]:
    """The server's points: of each distribution some that no client has."""
    found = []
    for kind in range(int(kinds.max()) + 1):
        free = np.concatenate([train[group] for group in np.flatnonzero(kinds == kind)])
        free = free[~used[free]]
        if len(free) < count:
            raise InputError(
                f"{count} training points for the server are needed, {len(free)} are left over: "
                "lower task.server_samples, task.samples or task.clients"
            )
        found.append(same(random.permutation(free)[:count], kind))
    return found


def natural(
    dataset: Dataset,
    *,
    clients: int,
    samples: int | None,
    probe: float,
    test_samples: int,
    server_samples: int,
    random: np.random.Generator,
) -> tuple[list[Share], list[Picks], list[Picks]]:
    """Chooses groups at random among those with enough points; sizes are what each has.

    Args:
        dataset: With groups.
        clients: How many groups.
        samples: At most so many training points (train + probe) each; None: all.
        probe: Share held back to score models.
        test_samples: At most so many test points each.
        server_samples: Points per distribution for the server, of no client.
        random: Draws.

    Returns:
        A share per client, the server's points, and the test pool of each distribution.

    Raises:
        InputError: When there are no groups, or too few with enough points.
    """
    if dataset.group_train is None or dataset.group_test is None:
        raise InputError(f"{dataset.name} has no writers or persons: natural does not apply")
    if samples is not None and samples < 2:
        raise InputError(f"task.samples = {samples}, but a client needs at least 2")
    groups = int(max(dataset.group_train.max(), dataset.group_test.max())) + 1
    train, test = _by_group(dataset.group_train, groups), _by_group(dataset.group_test, groups)
    fit = [group for group in range(groups) if len(train[group]) >= ENOUGH and len(test[group])]
    if clients > len(fit):
        raise InputError(
            f"{clients} clients are needed, {dataset.name} has {len(fit)} with at least {ENOUGH} training "
            "points and a test point: lower task.clients"
        )
    kinds = dataset.group_distribution
    if kinds is None:
        kinds = np.zeros(groups, dtype=np.int64)
    used = np.zeros(len(dataset.y_train), dtype=np.bool_)
    shares: list[Share] = []
    tested: list[list[NDArray[np.int64]]] = [[] for _ in range(int(kinds.max()) + 1)]
    for group in random.permutation(fit)[:clients].tolist():
        mine = random.permutation(train[group])[:samples]
        used[mine] = True
        cut, kind = int(probe_size(len(mine), probe)), int(kinds[group])
        held = same(mine[:cut], kind)
        scored = same(random.permutation(test[group])[:test_samples], kind)
        shares.append(Share(same(mine[cut:], kind), held, held, scored))
        tested[kind].append(test[group])
    server = _left_over(train, used, kinds, server_samples, random) if server_samples else []
    holdouts = [
        same(np.concatenate(pool) if pool else np.flatnonzero(kinds[dataset.group_test] == kind), kind)
        for kind, pool in enumerate(tested)
    ]
    return shares, server, holdouts
