"""Facts of a run that stay the same in all rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.config.sections import AggregateConfig
from ipfl.core import ClientId, Setup
from ipfl.core.arrays import Bools

HOLD_BACK = 0.5
"""Share of the rounds in which clients do not train on the points that they score models on: by then most
know where they belong."""


@dataclass(frozen=True)
class RunFacts:
    """The clients, the budget and the rules of a run."""

    ids: NDArray[np.int64]
    """Client id of each row, ascending: in every table a client is a row and a cluster a column."""
    per_round: int
    """Trainings per round."""
    epochs: int
    """Of a training."""
    seed: int
    rule: AggregateConfig
    """How a cluster's updates become its model."""
    is_noisy: bool
    """Whether clients put noise on their updates (`privacy.noise`)."""
    release_round: int
    """Round from which on clients may train on the points that they score models on."""

    @classmethod
    def of(cls, setup: Setup, *, holds_back: bool) -> RunFacts:
        """Those of a run; `holds_back`: whether points are held back at all."""
        return cls(
            ids=np.asarray(sorted(setup.clients), np.int64),
            per_round=setup.per_round,
            epochs=setup.config.train.epochs,
            seed=setup.seed,
            rule=setup.config.aggregate,
            is_noisy=setup.config.privacy.is_on,
            release_round=math.ceil(HOLD_BACK * setup.config.rounds) if holds_back else 0,
        )

    def rows(self, clients: Sequence[ClientId]) -> NDArray[np.int64]:
        """Rows of these clients."""
        return np.searchsorted(self.ids, np.asarray(clients, np.int64)).astype(np.int64)

    def among(self, clients: Sequence[ClientId]) -> Bools:
        """(N,) which rows are those of these clients."""
        return np.isin(self.ids, clients)
