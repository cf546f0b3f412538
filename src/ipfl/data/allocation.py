"""The points of each client and the server; no training point is given out twice.

For every partition but the natural one (see `ipfl.data.natural_partition`). The points lie in pools: all
points, those of a distribution's classes, or those of one class. First an `AllocationPlanner` decides how
many points each client gets, then `draw_points` draws them. The planner's tables have a row per client (for
the server's points: per distribution) and a column per pool and distribution in which its points are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TaskConfig
from ipfl.core import stream
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import Distribution
from ipfl.data.federated import Allocation, ClientPoints, Indices, PoolPoints
from ipfl.data.partitions import (
    MIN_UNEQUAL_SAMPLES,
    Partition,
    ShareMatrix,
    class_shares,
    counts_within_supply,
    distribution_shares,
    largest_remainder,
    probe_size,
    unequal_sizes,
)
from ipfl.errors import InputError

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PointPools:
    """The points of training and test by pool, and the pool of each column."""

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    names: tuple[str, ...]
    """Name of each pool in error messages."""
    pool_of_column: NDArray[np.int64]

    def sum_by_pool(self, table: NDArray[np.float64] | Counts) -> NDArray[np.float64]:
        """Sums the columns of each pool: (rows, columns) to (rows, pools)."""
        is_of_pool = self.pool_of_column[:, None] == np.arange(len(self.train))
        sums: NDArray[np.float64] = table @ is_of_pool.astype(np.float64)
        return sums


def _supply(pools: Sequence[Indices]) -> Counts:
    """Number of points in each pool."""
    return np.array([len(points) for points in pools], dtype=np.int64)


def make_pools(dataset: Dataset, distributions: Sequence[Distribution], by_class: bool) -> PointPools:
    """Makes one pool per class, one per distribution if these have classes of their own, or one for all."""
    pools: list[tuple[str, Distribution]]
    if by_class:
        pools = [(f" of class {label}", Distribution(classes=(label,))) for label in range(dataset.classes)]
    elif any(distribution.classes is not None for distribution in distributions):
        pools = [(f" of distribution {number}", one) for number, one in enumerate(distributions)]
    else:
        pools = [("", Distribution())]
    columns = np.zeros(len(distributions), dtype=np.int64) if len(pools) == 1 else np.arange(len(pools))
    return PointPools(
        train=tuple(np.flatnonzero(pool.contains(dataset.y_train)).astype(np.int32) for _, pool in pools),
        test=tuple(np.flatnonzero(pool.contains(dataset.y_test)).astype(np.int32) for _, pool in pools),
        names=tuple(name for name, _ in pools),
        pool_of_column=columns,
    )


@dataclass(frozen=True, eq=False)
class AllocationPlan:
    """Number of points of each column for every client."""

    distribution: Counts
    """Distribution of each (client, column)."""
    train: Counts
    """Train and probe together."""
    probe: Counts
    goal: Counts | None
    """None: the same points as probe."""
    test: Counts
    server: Counts
    """Rows are distributions."""


class AllocationPlanner:
    """Makes the plan, or raises an error that says which points are too few."""

    def __init__(
        self,
        task: TaskConfig,
        size_weights: NDArray[np.float64] | None,
        partition: Partition,
        pools: PointPools,
        distributions: int,
        random: np.random.Generator,
    ) -> None:
        self.task = task
        self.clients = task.clients or 0
        self.size_weights = size_weights
        """Relative sizes of the clients; None: all have the same size."""
        self.partition = partition
        self.pools = pools
        clients, columns = self.clients, len(pools.pool_of_column)
        supply = _supply(pools.train)
        server = np.full(distributions, task.server_samples)
        if partition.is_by_class:
            self.shares: ShareMatrix = class_shares(partition, clients, supply, random)
            self.distribution = np.repeat(np.arange(clients)[:, None] % distributions, columns, axis=1)
            self.server = largest_remainder(server, np.tile(supply, (distributions, 1)))
        else:
            self.shares = distribution_shares(partition, clients, distributions, random)
            self.distribution = np.tile(np.arange(columns), (clients, 1))
            self.server = largest_remainder(server, np.eye(distributions))
        self.supply = supply - pools.sum_by_pool(self.server).sum(axis=0).astype(np.int64)
        """Points of each pool that are left for the clients; negative if the server needs more than all."""

    def _sizes(self, samples: int) -> Counts:
        """Number of training points of each client."""
        if self.size_weights is None:
            return np.full(self.clients, samples, dtype=np.int64)
        return unequal_sizes(samples, self.size_weights)

    def _goal_counts(self, sizes: Counts) -> Counts | None:
        if not self.task.swap_test_mix:
            return None
        return largest_remainder(probe_size(sizes, self.task.probe), self.shares[:, ::-1])

    def _find_shortage(self, samples: int) -> InputError | None:
        """The error for so many samples per client; None if there are enough points."""
        sizes, supply, names = self._sizes(samples), self.supply, self.pools.names
        if self.partition.kind != "dirichlet":
            goal = self._goal_counts(sizes)
            counts = largest_remainder(sizes, self.shares)
            needed = self.pools.sum_by_pool(counts if goal is None else counts + goal).sum(axis=0)
        elif (supply >= 0).all():
            # Another class replaces one that has run out: only the sum counts.
            needed, supply, names = np.array([sizes.sum()]), np.array([supply.sum()]), ("",)
        else:
            needed = np.zeros(len(supply))
        if (needed <= supply).all():
            return None
        worst = int(np.argmax(needed - supply))
        taken = f" besides the server's {self.server.sum()}" if self.server.any() else ""
        return InputError(
            f"{int(needed[worst])} training points{names[worst]} are needed, there are "
            f"{max(supply[worst], 0)}{taken}: "
            "lower task.samples, task.clients or task.server_samples"
        )

    def _max_samples(self, minimum: int) -> int:
        """The largest number of samples per client that the pools can give, by bisection."""
        low = minimum
        high = max(minimum, int(_supply(self.pools.train).sum()) // self.clients)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._find_shortage(middle) is None else (low, middle - 1)
        return low

    def _test_counts(self, shares: ShareMatrix) -> Counts:
        """As many test points as allowed, but so few that even the smallest pool suffices for the mixture."""
        with np.errstate(divide="ignore", invalid="ignore"):
            possible = _supply(self.pools.test) / self.pools.sum_by_pool(shares)
        limit = np.floor(np.nan_to_num(possible, nan=np.inf, posinf=np.inf).min(axis=1) + 1e-9)
        sizes = np.minimum(limit, self.task.test_samples).astype(np.int64)
        if (sizes < 1).any():
            client = int(np.argmin(sizes))
            raise InputError(f"client {client} would have no test sample: the test pool lacks its classes")
        return largest_remainder(sizes, shares)

    def plan(self) -> AllocationPlan:
        """Makes the plan.

        Raises:
            InputError: A pool has too few points.
        """
        task = self.task
        minimum = 2 if self.size_weights is None else MIN_UNEQUAL_SAMPLES
        samples = self._max_samples(minimum) if task.samples is None else task.samples
        if samples < minimum:
            raise InputError(f"task.samples = {samples}, but a client needs at least {minimum}")
        if (shortage := self._find_shortage(samples)) is not None:
            raise shortage
        sizes = self._sizes(samples)
        if self.partition.kind == "dirichlet":
            train = counts_within_supply(sizes, self.shares, self.supply)
        else:
            train = largest_remainder(sizes, self.shares)
        mix = train / train.sum(axis=1, keepdims=True) if self.partition.is_by_class else self.shares
        return AllocationPlan(
            distribution=self.distribution,
            train=train,
            probe=largest_remainder(probe_size(sizes, task.probe), train),
            goal=self._goal_counts(sizes),
            test=self._test_counts(mix[:, ::-1] if task.swap_test_mix else mix),
            server=self.server,
        )


class _PointDrawer:
    """Draws the points of each pool in a random order; with `reuse`, starts again when a pool is used up."""

    def __init__(self, pools: Sequence[Indices], random: np.random.Generator, reuse: bool) -> None:
        self._orders = [random.permutation(pool) for pool in pools]
        self._next = [0] * len(pools)
        self._reuse = reuse

    def draw(self, pool: int, count: int) -> Indices:
        order, start = self._orders[pool], self._next[pool]
        self._next[pool] = start + count
        if not self._reuse:
            return order[start : start + count]
        return order.take(np.arange(start, start + count), mode="wrap")


def draw_points(
    pools: PointPools, plan: AllocationPlan, random: np.random.Generator
) -> tuple[list[ClientPoints], list[PoolPoints]]:
    """Draws the points of a plan, each part in random order.

    Returns:
        The points of every client, and the server's per distribution (empty if it has none).
    """
    train = _PointDrawer(pools.train, random, reuse=False)
    test = _PointDrawer(pools.test, random, reuse=True)
    pool_of_column = pools.pool_of_column.tolist()

    def draw(counts: Counts, distribution: Counts, drawer: _PointDrawer = train) -> PoolPoints:
        columns = counts.nonzero()[0].tolist()
        drawn = [drawer.draw(pool_of_column[column], int(counts[column])) for column in columns]
        index = np.concatenate(drawn) if drawn else np.zeros(0, np.int32)
        order = random.permutation(len(index))
        seen = np.repeat(distribution[columns], counts[columns])
        return PoolPoints(index[order], seen[order].astype(np.uint8))

    server = []
    if plan.server.any():
        for number, counts in enumerate(plan.server):
            server.append(draw(counts, np.full(len(pool_of_column), number)))
    clients = []
    for client, distribution in enumerate(plan.distribution):
        probe = draw(plan.probe[client], distribution)
        own = draw(plan.train[client] - plan.probe[client], distribution)
        goal = probe if plan.goal is None else draw(plan.goal[client], distribution)
        clients.append(ClientPoints(own, probe, goal, draw(plan.test[client], distribution, test)))
    return clients, server


def allocate(
    dataset: Dataset,
    partition: Partition,
    distributions: Sequence[Distribution],
    task: TaskConfig,
    seed: int,
) -> Allocation:
    """Gives points to the clients and the server, for every partition but the natural one.

    Raises:
        InputError: There are too few points.
    """
    pools = make_pools(dataset, distributions, partition.is_by_class)
    random = stream(seed, "data", "partition")
    weights = None
    if task.sizes == "unequal":
        weights = np.exp(stream(seed, "data", "sizes").normal(0.0, task.size_spread, task.clients or 0))
    plan = AllocationPlanner(task, weights, partition, pools, len(distributions), random).plan()
    clients, server = draw_points(pools, plan, stream(seed, "data", "deal"))
    holdouts = [
        PoolPoints.of_one_distribution(np.flatnonzero(one.contains(dataset.y_test)), number)
        for number, one in enumerate(distributions)
    ]
    return Allocation(clients, holdouts, server)
