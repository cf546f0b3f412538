"""Who gets which points: shares to whole numbers to indices, every training point at most once.

The points lie in pools (all of them, those of a distribution's classes, or those of one class). A column
of the plan is a pool seen in a distribution; a row is a client, or the server's holdout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.data.apportion import apportion
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import Distribution
from ipfl.data.federation import Indices, Picks, Share, probe_size
from ipfl.data.partitions import SMALLEST, Partition, Shares, class_shares, mixtures, unequal, while_they_last
from ipfl.errors import InputError

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Demand:
    """What is asked for: the settings of a task that decide about points."""

    clients: int
    samples: int | None
    weights: NDArray[np.float64] | None
    """Relative sizes of the clients; None: all alike."""
    probe: float
    test_samples: int
    server_samples: int
    synthetic: bool


@dataclass(frozen=True, eq=False)
class Pools:
    """The points of training and test by pool, and the pool of each column."""

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    names: tuple[str, ...]
    pool: NDArray[np.int64]

    def supply(self, test: bool = False) -> Counts:
        """Number of points in each pool."""
        return np.array([len(points) for points in (self.test if test else self.train)], dtype=np.int64)

    def per_pool(self, columns: NDArray[np.float64] | Counts) -> NDArray[np.float64]:
        """Sums the columns of each pool: (rows, columns) to (rows, pools)."""
        one_hot = self.pool[:, None] == np.arange(len(self.train))
        sums: NDArray[np.float64] = columns @ one_hot.astype(np.float64)
        return sums


def pools(dataset: Dataset, changes: Sequence[Distribution], by_class: bool) -> Pools:
    """Pools and columns for a partition: by class, by the distributions' classes, or one for all."""
    wheres: list[tuple[str, Distribution]]
    if by_class:
        wheres = [(f" of class {label}", Distribution(classes=(label,))) for label in range(dataset.classes)]
    elif any(change.classes is not None for change in changes):
        wheres = [(f" of distribution {number}", change) for number, change in enumerate(changes)]
    else:
        wheres = [("", Distribution())]
    columns = np.zeros(len(changes), dtype=np.int64) if len(wheres) == 1 else np.arange(len(wheres))
    train = tuple(np.flatnonzero(where.has(dataset.y_train)).astype(np.int32) for _, where in wheres)
    test = tuple(np.flatnonzero(where.has(dataset.y_test)).astype(np.int32) for _, where in wheres)
    return Pools(train, test, tuple(name for name, _ in wheres), columns)


@dataclass(frozen=True, eq=False)
class Plan:
    """How many points of each column every row gets."""

    seen: Counts
    """Distribution of each (client, column)."""
    train: Counts
    """Train and probe together."""
    probe: Counts
    goal: Counts | None
    """None: the same points as probe."""
    test: Counts
    server: Counts
    """Rows are distributions."""


class Planner:
    """Turns a demand into a plan, or says what there is too little of."""

    def __init__(
        self,
        demand: Demand,
        partition: Partition,
        places: Pools,
        distributions: int,
        random: np.random.Generator,
    ) -> None:
        self.demand = demand
        self.partition = partition
        self.places = places
        n, columns = demand.clients, len(places.pool)
        supply = places.supply()
        server = np.full(distributions, demand.server_samples)
        if partition.by_class:
            self.shares: Shares = class_shares(partition, n, supply, random)
            self.seen = np.repeat(np.arange(n)[:, None] % distributions, columns, axis=1)
            self.server = apportion(server, np.tile(supply, (distributions, 1)))
        else:
            self.shares = mixtures(partition, n, distributions, random)
            self.seen = np.tile(np.arange(columns), (n, 1))
            self.server = apportion(server, np.eye(distributions))
        self.left = supply - places.per_pool(self.server).sum(axis=0).astype(np.int64)

    def _sizes(self, samples: int) -> Counts:
        if self.demand.weights is None:
            return np.full(self.demand.clients, samples, dtype=np.int64)
        return unequal(samples, self.demand.weights)

    def _goal(self, sizes: Counts) -> Counts | None:
        if not self.demand.synthetic:
            return None
        return apportion(probe_size(sizes, self.demand.probe), self.shares[:, ::-1])

    def _lack(self, samples: int) -> InputError | None:
        """What there is too little of for so many samples per client, if anything."""
        sizes, have, names = self._sizes(samples), self.left, self.places.names
        if self.partition.kind != "dirichlet":
            goal = self._goal(sizes)
            counts = apportion(sizes, self.shares)
            needed = self.places.per_pool(counts if goal is None else counts + goal).sum(axis=0)
        elif (have >= 0).all():
            # Another class fills in for one that has run out: only the sum counts.
            needed, have, names = np.array([sizes.sum()]), np.array([have.sum()]), ("",)
        else:
            needed = np.zeros(len(have))
        if (needed <= have).all():
            return None
        worst = int(np.argmax(needed - have))
        taken = f" besides the server's {self.server.sum()}" if self.server.any() else ""
        return InputError(
            f"{int(needed[worst])} training points{names[worst]} are needed, there are "
            f"{max(have[worst], 0)}{taken}: "
            "lower task.samples, task.clients or task.server_samples"
        )

    def _most(self, least: int) -> int:
        """The largest number of samples per client that the pools can give, by bisection."""
        low, high = least, max(least, int(self.places.supply().sum()) // self.demand.clients)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._lack(middle) is None else (low, middle - 1)
        return low

    def _tests(self, shares: Shares) -> Counts:
        """As many test points as allowed, fewer where a small pool would bend the mixture."""
        with np.errstate(divide="ignore", invalid="ignore"):
            room = self.places.supply(test=True) / self.places.per_pool(shares)
        cap = np.floor(np.nan_to_num(room, nan=np.inf, posinf=np.inf).min(axis=1) + 1e-9)
        sizes = np.minimum(cap, self.demand.test_samples).astype(np.int64)
        if (sizes < 1).any():
            client = int(np.argmin(sizes))
            raise InputError(f"client {client} would have no test sample: the test pool lacks its classes")
        return apportion(sizes, shares)

    def plan(self) -> Plan:
        """The plan.

        Raises:
            InputError: When a pool has too few points.
        """
        least = 2 if self.demand.weights is None else SMALLEST
        samples = self._most(least) if self.demand.samples is None else self.demand.samples
        if samples < least:
            raise InputError(f"task.samples = {samples}, but a client needs at least {least}")
        lack = self._lack(samples)
        if lack is not None:
            raise lack
        sizes = self._sizes(samples)
        if self.partition.kind == "dirichlet":
            counts = while_they_last(sizes, self.shares, self.left)
        else:
            counts = apportion(sizes, self.shares)
        probe = apportion(probe_size(sizes, self.demand.probe), counts)
        wanted = counts / counts.sum(axis=1, keepdims=True) if self.partition.by_class else self.shares
        test = self._tests(wanted[:, ::-1] if self.demand.synthetic else wanted)
        return Plan(self.seen, counts, probe, self._goal(sizes), test, self.server)


class _Dealer:
    """Hands out the points of each pool in a random order; `again`: starts over when one is used up."""

    def __init__(self, points: Sequence[Indices], random: np.random.Generator, again: bool) -> None:
        self._orders = [random.permutation(pool) for pool in points]
        self._next = [0] * len(points)
        self._again = again

    def take(self, pool: int, count: int) -> Indices:
        order, start = self._orders[pool], self._next[pool]
        self._next[pool] = start + count
        if not self._again:
            return order[start : start + count]
        return order.take(np.arange(start, start + count), mode="wrap")


def _deal(dealer: _Dealer, pool: Sequence[int], counts: Counts, seen: Counts) -> tuple[Indices, Counts]:
    columns = np.flatnonzero(counts).tolist()
    taken = [dealer.take(pool[column], int(counts[column])) for column in columns]
    index = np.concatenate(taken) if taken else np.zeros(0, np.int32)
    return index, np.repeat(seen[columns], counts[columns])


def deal(places: Pools, plan: Plan, random: np.random.Generator) -> tuple[list[Share], list[Picks]]:
    """Points for every client and for the server, each part in random order.

    Returns:
        A share per client, and the server's points per distribution (empty if it has none).
    """
    dealer = _Dealer(places.train, random, again=False)
    tests = _Dealer(places.test, random, again=True)
    pool = places.pool.tolist()

    def picks(counts: Counts, seen: Counts, source: _Dealer = dealer) -> Picks:
        index, distribution = _deal(source, pool, counts, seen)
        order = random.permutation(len(index))
        return Picks(index[order], distribution[order].astype(np.uint8))

    server = []
    if plan.server.any():
        for number, counts in enumerate(plan.server):
            server.append(picks(counts, np.full(len(pool), number)))
    shares = []
    for client, seen in enumerate(plan.seen):
        probe = picks(plan.probe[client], seen)
        train = picks(plan.train[client] - plan.probe[client], seen)
        goal = probe if plan.goal is None else picks(plan.goal[client], seen)
        shares.append(Share(train, probe, goal, picks(plan.test[client], seen, tests)))
    return shares, server
