"""Federated data: what each client holds, as methods and engines see it, and the class that implements it.

Each client has four parts: `train`; `probe`, held back from its training data to score models;
`goal`, a sample of what it wants to be good at; `test`, which only the evaluator sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.data.dataset import Dataset
from ipfl.data.distributions import Distribution
from ipfl.data.partitions import probe_size
from ipfl.data.target_kinds import Target
from ipfl.errors import InputError

if TYPE_CHECKING:
    from ipfl.data.drift import Drift
    from ipfl.data.own.table_encoding import TableEncoding

Indices = NDArray[np.int32]
"""Positions of points in a pool."""


@dataclass(frozen=True)
class Samples:
    """Some points with what is to be predicted of them; see `ipfl.data.dataset` for the forms of points."""

    x: NDArray[Any]
    y: NDArray[Any]
    """Classes as int64 (n,); labels or numbers as float32 (n, outputs), numbers also (n,)."""

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, chosen: slice | NDArray[Any]) -> Samples:
        """Some of these points."""
        return Samples(self.x[chosen], self.y[chosen])

    def joined(self, others: Samples) -> Samples:
        """These points, and then the others."""
        return Samples(np.concatenate([self.x, others.x]), np.concatenate([self.y, others.y]))


@dataclass(frozen=True)
class Parts:
    """One client's data at one time."""

    train: Samples
    probe: Samples
    goal: Samples
    test: Samples


class FederatedData(ABC):
    """Data of all clients; a client's arrays are made when it works and dropped afterwards."""

    name: str
    partition: str
    input_shape: tuple[int, ...]
    target: Target
    """The target of predictions."""
    clients: tuple[int, ...]
    """Ids of the clients that may take part."""
    unseen: tuple[int, ...] = ()
    """Ids of the clients held back: never trained with, evaluated at the end."""
    distributions: int = 0
    """Number of hidden distributions; 1 if there are none to tell apart, 0 if nobody knows."""
    tokens: int | None = None
    """Number of different token ids, 0 to the highest, where points can be such; else None."""
    client_names: Mapping[int, str] = MappingProxyType({})
    """Names of the clients by id; empty if they say nothing that the ids do not say."""
    encoding: TableEncoding | None = None
    """The way from rows of a table to points; None: they are no table."""
    notes: Sequence[str] = ()
    """Notes for people about who became a client."""

    @property
    def classes(self) -> int:
        """Outputs of a model: number of classes, of labels, or of numbers."""
        return self.target.outputs

    @cached_property
    def class_names(self) -> Sequence[str]:
        """Names of the classes; where they have none, their numbers."""
        return [str(label) for label in range(self.classes)]

    @abstractmethod
    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data in that round (drift changes it)."""

    @abstractmethod
    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part, without making the arrays."""

    def majority(self, client: int, round: int = 0) -> int | None:
        """The distribution that most of its training data comes from; None where there is none.

        For metrics only: neither the server nor a client is told.
        """
        return None

    def holdout(self, distribution: int) -> Samples:
        """Test pool of one distribution, for the accuracy of cluster models; empty where nobody has one."""
        return Samples(np.empty((0, *self.input_shape), np.float32), np.empty(0, np.int64))

    def server_holdout(self, distribution: int) -> Samples | None:
        """The server's own few samples of one distribution, if it was given any."""
        return None


@dataclass(frozen=True, eq=False)
class PoolPoints:
    """Some points of a pool, and the distribution in which each of them is seen."""

    index: Indices
    distribution: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def of_one_distribution(cls, index: NDArray[Any], distribution: int) -> PoolPoints:
        """Points that are all seen in the same distribution."""
        return cls(index.astype(np.int32), np.full(len(index), distribution, dtype=np.uint8))


@dataclass(frozen=True, eq=False)
class ClientPoints:
    """One client's points: `test` from the test pool, the others from the training pool."""

    train: PoolPoints
    probe: PoolPoints
    goal: PoolPoints
    test: PoolPoints

    @classmethod
    def of_one_distribution(
        cls, train: NDArray[Any], test: NDArray[Any], distribution: int, probe: float
    ) -> ClientPoints:
        """Points of one distribution; the first share `probe` of `train` is held back as probe and goal."""
        cut = int(probe_size(len(train), probe))
        held_back = PoolPoints.of_one_distribution(train[:cut], distribution)
        return cls(
            train=PoolPoints.of_one_distribution(train[cut:], distribution),
            probe=held_back,
            goal=held_back,
            test=PoolPoints.of_one_distribution(test, distribution),
        )

    def majority(self, distributions: int) -> int | None:
        """The distribution of most points of train and probe; None if there is only one, or a tie."""
        if distributions == 1:
            return None
        seen = np.concatenate([self.train.distribution, self.probe.distribution])
        counts = np.bincount(seen, minlength=distributions)
        largest = np.flatnonzero(counts == counts.max())
        return int(largest[0]) if len(largest) == 1 else None


@dataclass(frozen=True, eq=False)
class Allocation:
    """The points of a data set that each client and the server hold."""

    clients: Sequence[ClientPoints]
    """By client id."""
    holdouts: Sequence[PoolPoints]
    """Test pool of each distribution."""
    server: Sequence[PoolPoints] = ()
    """The server's own training points of each distribution, which no client has; empty if it has none."""
    groups: Sequence[int] = ()
    """The group (writer, person, …) that each client is; empty if clients are no groups."""
    notes: tuple[str, ...] = ()
    """Notes for people about who became a client."""


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """Wrong labels at some clients: data of graded quality, to see whether a market tells it apart."""

    shares: NDArray[np.float64]
    """(N,): share of each client's labels that are drawn anew; those of test points stay."""
    seed: int

    @classmethod
    def deal(cls, shares: Sequence[float], clients: int, seed: int) -> LabelNoise:
        """The given shares in turn, over clients in random order."""
        dealt = np.resize(np.asarray(shares, np.float64), clients)
        return cls(stream(seed, "label noise").permutation(dealt), seed)

    def apply(self, client: int, samples: Samples, part: str, classes: int) -> Samples:
        """Some points with wrong labels; the same ones whenever it is asked."""
        rng = stream(self.seed, "wrong labels", client, part)
        is_wrong = rng.random(len(samples.y)) < self.shares[client]
        drawn = rng.integers(0, classes, len(samples.y))
        return Samples(samples.x, np.where(is_wrong, drawn, samples.y))


class PartitionedDataset(FederatedData):
    """`FederatedData` over one data set, held as index arrays; a client's arrays are made when asked for.

    Args:
        dataset: The pools.
        partition: Its name, for reports.
        distributions: The hidden distributions.
        allocation: Who holds which points.
        unseen: Ids of the clients held back.
        drift: Which clients change, and when; None: none.
        noise: Which clients have wrong labels; None: nobody.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        partition: str,
        distributions: Sequence[Distribution],
        allocation: Allocation,
        unseen: Iterable[int] = (),
        drift: Drift | None = None,
        noise: LabelNoise | None = None,
    ) -> None:
        self.name = dataset.name
        self.partition = partition
        self.input_shape: tuple[int, ...] = dataset.x_train.shape[1:]
        self.target = dataset.predicted
        self.tokens = dataset.tokens
        self.distributions = len(distributions)
        self.unseen: tuple[int, ...] = tuple(sorted(unseen))
        everyone = range(len(allocation.clients))
        self.clients: tuple[int, ...] = tuple(sorted(set(everyone) - set(self.unseen)))
        self.drift, self.noise = drift, noise
        self.allocation = allocation
        self._dataset = dataset
        self._distributions = tuple(distributions)
        self._majorities = tuple(points.majority(len(distributions)) for points in allocation.clients)
        names = dataset.group_names or ()
        self.client_names = {client: names[group] for client, group in enumerate(allocation.groups) if names}
        if odd := [name for name in self.client_names.values() if not name.isprintable()]:
            raise InputError(f"{dataset.name}: the name {odd[0]!r} of a client is not printable")
        if all(name == str(client) for client, name in self.client_names.items()):
            self.client_names = {}
        if dataset.class_names is not None:
            self.class_names = dataset.class_names
        self.encoding = dataset.encoding
        self.notes = allocation.notes

    def _holder(self, client: int, round: int) -> int:
        """The client whose data this client has in that round."""
        if self.drift is None or round < self.drift.round:
            return client
        return self.drift.partner.get(client, client)

    def _train_samples(self, points: PoolPoints) -> Samples:
        return self._make_samples(points, self._dataset.x_train, self._dataset.y_train)

    def _test_samples(self, points: PoolPoints) -> Samples:
        return self._make_samples(points, self._dataset.x_test, self._dataset.y_test)

    def _make_samples(self, points: PoolPoints, x: NDArray[Any], y: NDArray[Any]) -> Samples:
        """Copies points of a pool and changes each as its distribution says."""
        features, labels = x[points.index], y[points.index]
        for number, distribution in enumerate(self._distributions):
            if distribution.has_changes:
                of_it = points.distribution == number
                features[of_it] = distribution.change_features(features[of_it])
                labels[of_it] = distribution.change_labels(labels[of_it])
        return Samples(features, labels)

    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data in that round, made anew."""
        points = self.allocation.clients[self._holder(client, round)]

        def make(part: str, of_it: PoolPoints) -> Samples:
            samples = self._train_samples(of_it)
            return samples if self.noise is None else self.noise.apply(client, samples, part, self.classes)

        probe = make("probe", points.probe)
        goal = probe if points.goal is points.probe else make("goal", points.goal)
        return Parts(make("train", points.train), probe, goal, self._test_samples(points.test))

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part, before any drift."""
        points = self.allocation.clients[client]
        return {
            "train": len(points.train),
            "probe": len(points.probe),
            "goal": len(points.goal),
            "test": len(points.test),
        }

    def majority(self, client: int, round: int = 0) -> int | None:
        """The distribution most of its training data comes from; None with one distribution, or a tie."""
        return self._majorities[self._holder(client, round)]

    def holdout(self, distribution: int) -> Samples:
        """Test pool of one distribution."""
        return self._test_samples(self.allocation.holdouts[distribution])

    def server_holdout(self, distribution: int) -> Samples | None:
        """The server's own samples of one distribution; None if it has none."""
        server = self.allocation.server
        return self._train_samples(server[distribution]) if server else None
