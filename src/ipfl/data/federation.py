"""A whole federation held as index arrays into one data set; a client's arrays are made when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.data.dataset import Dataset
from ipfl.data.distributions import Distribution
from ipfl.data.federated import Parts, Samples

Indices = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Picks:
    """Some points of a pool, and the distribution that each is seen in."""

    index: Indices
    distribution: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class Share:
    """One client's points: `test` from the test pool, the others from the training pool."""

    train: Picks
    probe: Picks
    goal: Picks
    test: Picks


@dataclass(frozen=True)
class Drift:
    """From `round` on, each client in `partner` has the data of its partner, and the reverse."""

    round: int
    partner: Mapping[int, int]


def same(index: NDArray[Any], distribution: int) -> Picks:
    """Points that are all seen in one distribution."""
    return Picks(index.astype(np.int32), np.full(len(index), distribution, dtype=np.uint8))


def probe_size(samples: NDArray[np.int64] | int, share: float) -> NDArray[np.int64]:
    """Points held back to score models: the share, at least 1, leaving at least 1 to train on."""
    total = np.asarray(samples, dtype=np.int64)
    # Half rounds up; the tiny push keeps 0.29 · 50 = 14.499999999999998 a half.
    wanted = np.floor(share * total + 0.5 + 1e-9).astype(np.int64)
    held: NDArray[np.int64] = np.clip(wanted, 1, total - 1)
    return held


def most(picks: Iterable[Picks], distributions: int) -> int | None:
    """The distribution that most points are of; None where there is one only, or a tie."""
    if distributions == 1:
        return None
    counts = np.bincount(np.concatenate([part.distribution for part in picks]), minlength=distributions)
    top = np.flatnonzero(counts == counts.max())
    return int(top[0]) if len(top) == 1 else None


class Federation:
    """`FederatedData` over one data set. Client ids are positions in `shares`.

    Args:
        base: The pools.
        partition: Its name, for reports.
        changes: The hidden distributions.
        shares: Each client's points.
        holdouts: Test pool of each distribution.
        server: The server's own points of each distribution; empty if it has none.
        unseen: Ids of the clients held back.
        drift: Who changes when; None: nobody.
    """

    def __init__(
        self,
        base: Dataset,
        *,
        partition: str,
        changes: Sequence[Distribution],
        shares: Sequence[Share],
        holdouts: Sequence[Picks],
        server: Sequence[Picks] = (),
        unseen: Iterable[int] = (),
        drift: Drift | None = None,
    ) -> None:
        self.name = base.name
        self.partition = partition
        self.input_shape: tuple[int, ...] = base.x_train.shape[1:]
        self.classes = base.classes
        self.distributions = len(changes)
        self.unseen: tuple[int, ...] = tuple(sorted(unseen))
        held_back = set(self.unseen)
        self.clients: tuple[int, ...] = tuple(i for i in range(len(shares)) if i not in held_back)
        self.drift = drift
        self.shares = tuple(shares)
        self._base = base
        self._changes = tuple(changes)
        self._holdouts = tuple(holdouts)
        self._server = tuple(server)
        self._majority = tuple(most((share.train, share.probe), len(changes)) for share in shares)

    def _holder(self, client: int, round: int) -> int:
        """Whose data the client has in that round."""
        if self.drift is None or round < self.drift.round:
            return client
        return self.drift.partner.get(client, client)

    def _train(self, picks: Picks) -> Samples:
        return self._made(picks, self._base.x_train, self._base.y_train)

    def _test(self, picks: Picks) -> Samples:
        return self._made(picks, self._base.x_test, self._base.y_test)

    def _made(self, picks: Picks, x: NDArray[Any], y: NDArray[np.int64]) -> Samples:
        points, marks = x[picks.index], y[picks.index]
        for number, change in enumerate(self._changes):
            if change.turns or change.relabel is not None:
                mine = picks.distribution == number
                points[mine] = change.x(points[mine])
                marks[mine] = change.y(marks[mine])
        return Samples(points, marks)

    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data in that round, made afresh."""
        share = self.shares[self._holder(client, round)]
        probe = self._train(share.probe)
        goal = probe if share.goal is share.probe else self._train(share.goal)
        return Parts(train=self._train(share.train), probe=probe, goal=goal, test=self._test(share.test))

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part, before any drift."""
        share = self.shares[client]
        return {
            "train": len(share.train),
            "probe": len(share.probe),
            "goal": len(share.goal),
            "test": len(share.test),
        }

    def majority(self, client: int, round: int = 0) -> int | None:
        """The distribution most of its training data comes from; None with one distribution, or a tie."""
        return self._majority[self._holder(client, round)]

    def holdout(self, distribution: int) -> Samples:
        """Test pool of one distribution."""
        return self._test(self._holdouts[distribution])

    def server_holdout(self, distribution: int) -> Samples | None:
        """The server's own samples of one distribution, from the training pool, of no client."""
        return self._train(self._server[distribution]) if self._server else None
