"""Models that the server keeps of single clients, on disk: only those in use cost memory.

A store is a value: `put` leaves the old one as it was and returns the new one, so that a method's state with
a store in it goes in and comes out like any other. On disk there is a file per client and round, as in the
clients' own memory, so that rounds that were not committed can be rolled back. What an old store held before
the last commit may be gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from ipfl.client.memory import ClientMemory
from ipfl.core import ClientId, Record, Vector


@dataclass(frozen=True)
class ClientModelStore:
    """One vector per client that has put one there."""

    memory: ClientMemory = field(metadata={"local": True})
    """The folder; where it is does not belong to a checkpoint."""
    rounds: Mapping[ClientId, int] = field(default_factory=dict)
    """Round in which each client's vector was put there."""
    in_use: WeakValueDictionary[tuple[ClientId, int], Vector] = field(
        default_factory=WeakValueDictionary, repr=False, compare=False, metadata={"local": True}
    )
    """Vectors that somebody still holds, by client and round: many may ask for the same one."""

    def put(self, vectors: Mapping[ClientId, Vector], round: int) -> ClientModelStore:
        """The store with these vectors instead of those clients' earlier ones."""
        for client, vector in vectors.items():
            self.memory.save(client, Record({"model": vector}), round)
            self.in_use.pop((client, round), None)
        return replace(self, rounds=dict(sorted({**self.rounds, **dict.fromkeys(vectors, round)}.items())))

    def __getitem__(self, client: ClientId) -> Vector:
        """The client's vector, read-only; the same array as long as anybody holds it."""
        key = (client, self.rounds[client])
        vector = self.in_use.get(key)
        if vector is None:
            vector = self.memory.load(*key).params["model"]
            vector.flags.writeable = False
            self.in_use[key] = vector
        return vector

    def get(self, client: ClientId, default: Vector) -> Vector:
        """The client's vector, or another one if there is none."""
        return self[client] if client in self.rounds else default

    def __contains__(self, client: ClientId) -> bool:
        return client in self.rounds

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Whose vectors are there, ascending."""
        return tuple(self.rounds)
