"""Steps that methods share: choosing clients, averaging their replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipfl.core import ClientId, Replies, Roster, Vector
from ipfl.params import mean, sound


@dataclass(frozen=True)
class OneModel:
    """State of a method whose server keeps one model."""

    params: Vector
    per_round: int
    seed: int

    def trained(self, params: Vector) -> OneModel:
        """The same with new parameters."""
        return replace(self, params=params)


def choose(roster: Roster, count: int, rng: np.random.Generator) -> list[ClientId]:
    """`count` clients at random without repetition, or all if there are fewer; ascending."""
    count = min(count, len(roster.clients))
    return sorted(int(client) for client in rng.choice(roster.clients, count, replace=False))


def average(replies: Replies, name: str, otherwise: Vector) -> Vector:
    """Mean of the replies' vectors by their sample counts `n`, broken ones left out, in ascending id.

    `otherwise` (the model before) stays if nobody answered.
    """
    kept: Sequence[ClientId] = [c for c in sorted(replies) if sound(replies[c], name, len(otherwise))]
    if not kept:
        return otherwise
    return mean([replies[c].params[name] for c in kept], [float(replies[c].facts["n"]) for c in kept])
