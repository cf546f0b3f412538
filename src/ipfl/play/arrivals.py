"""Clients that join in the middle of a run (`clients.join_round`)."""

from __future__ import annotations

from collections.abc import Sequence

from ipfl.config.run_config import ClientsConfig
from ipfl.core import ClientId, stream


class Arrivals:
    """Who is there from which round on; a seeded choice.

    Args:
        config: When, and how many.
        clients: All clients that take part sooner or later.
        seed: Of the run.
    """

    def __init__(self, config: ClientsConfig, clients: Sequence[ClientId], seed: int):
        self.round = config.join_round or 0
        self.late: frozenset[ClientId] = frozenset()
        if self.round:
            # At least one is there from the start, or there would be nothing to join.
            count = min(round(config.join_share * len(clients)), len(clients) - 1)
            chosen = stream(seed, "late").choice(clients, count, replace=False)
            self.late = frozenset(int(client) for client in chosen)

    def has_joined(self, client: ClientId, round: int) -> bool:
        """Whether a client takes part in a round."""
        return round >= self.round or client not in self.late
