"""Who is held back, and who changes: the unseen clients and the pairs of a drift.

Drift is an exchange: two clients of different majority distributions swap all their data from a round on,
so that no new images are needed and every image stays with one client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipfl.data.federation import Drift
from ipfl.errors import InputError


def held_back(majorities: Sequence[int | None], count: int, random: np.random.Generator) -> tuple[int, ...]:
    """The unseen clients: a random choice, spread over the majority distributions as evenly as possible."""
    seats: dict[int | None, int] = {}
    turns = []
    for client in random.permutation(len(majorities)).tolist():
        kind = majorities[client]
        seats[kind] = seats.get(kind, -1) + 1
        turns.append((seats[kind], client))
    turns.sort(key=lambda turn: turn[0])
    return tuple(sorted(client for _, client in turns[:count]))


def drift(
    majorities: Sequence[int | None],
    clients: Sequence[int],
    at: int,
    share: float,
    random: np.random.Generator,
) -> Drift:
    """Pairs clients across majority distributions, until the share of all clients is reached.

    Args:
        majorities: By client id, the unseen included.
        clients: Who may change.
        at: Round of the change.
        share: Of all clients; an odd number loses one, and at least one pair changes.
        random: Draws the pairs.

    Raises:
        InputError: When there are no two clients of different distributions.
    """
    kinds: dict[int, list[int]] = {}
    for client in random.permutation(np.asarray(clients)).tolist():
        kind = majorities[client]
        if kind is not None:
            kinds.setdefault(kind, []).append(client)
    partner: dict[int, int] = {}
    wanted = max(2, round(share * len(majorities)))
    while len(partner) + 2 <= wanted:
        # From the two fullest, so that as many pairs as possible can be made.
        fullest = sorted(kinds.values(), key=len)[-2:]
        if len(fullest) < 2 or not fullest[0]:
            break
        one, other = fullest[0].pop(), fullest[1].pop()
        partner[one], partner[other] = other, one
    if not partner:
        raise InputError("drift needs clients of at least two distributions: there is nothing to change to")
    return Drift(at, partner)
