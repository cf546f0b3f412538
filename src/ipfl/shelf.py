"""Models that the server keeps of single clients, on disk: only those in use cost memory.

A shelf is a value: `put` leaves the old one as it was and returns the new one, so that a method's state with
a shelf in it goes in and comes out like any other. On disk there is a file per client and round, as in the
clients' own memory, so that rounds that were not committed can be taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ipfl.core import ClientId, Record, Vector
from ipfl.memory import ClientMemory


@dataclass(frozen=True)
class Shelf:
    """One vector per client that has put one there."""

    place: ClientMemory = field(metadata={"local": True})
    """The folder; where it is does not belong to a checkpoint."""
    rounds: Mapping[ClientId, int] = field(default_factory=dict)
    """Round in which each client's vector was put there."""

    def put(self, vectors: Mapping[ClientId, Vector], round: int) -> Shelf:
        """The shelf with these vectors instead of those clients' earlier ones."""
        for client, vector in vectors.items():
            self.place.save(client, Record({"model": vector}), round)
        return replace(self, rounds=dict(sorted({**self.rounds, **dict.fromkeys(vectors, round)}.items())))

    def __getitem__(self, client: ClientId) -> Vector:
        return self.place.load(client, self.rounds[client]).params["model"]

    def __contains__(self, client: ClientId) -> bool:
        return client in self.rounds

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Whose vectors are there, ascending."""
        return tuple(self.rounds)
