"""Random restarts: which of several sets of K random models a method begins with.

As in IFCA's authors' code for CIFAR (`find_good_initializer`): random clients choose among the models of a
set by their loss, until every model of a set is chosen by a share of them. Clients answer the action `rate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np

from ipfl.core import Ask, ClientId, Record, Replies, Roster, Vector, cluster_name
from ipfl.core.replies import Number, ReplySchema, list_of
from ipfl.core.rounds import Event
from ipfl.core.streams import stream
from ipfl.methods.shared.steps import draw_clients

Models = tuple[Vector, ...]


def draw_anew(roster: Roster, count: int, seed: int, round: int) -> Callable[[int], list[ClientId]]:
    """So many random clients for a set of models, other ones for each."""
    return lambda number: draw_clients(roster, count, stream(seed, "restarts", round, number))


def choose_start(
    sets: Sequence[Models], clients: Callable[[int], Sequence[ClientId]]
) -> Generator[Ask, Replies, tuple[Models, Event]]:
    """Clients score one set after the other, until one is accepted; else the best is kept.

    Args:
        sets: K models each.
        clients: Who is asked about a set, by its number.

    Returns:
        The models kept, and an event that says why.
    """
    k = len(sets[0])
    expected = ReplySchema({"losses": list_of(Number, k)})
    spreads: list[Spread] = []
    for number, models in enumerate(sets):
        record = Record({cluster_name(k): model for k, model in enumerate(models)})
        replies = yield Ask("rate", dict.fromkeys(clients(number), record), expected)
        if not replies:  # nor would they answer about another set
            break
        spreads.append(spread_of_choices([reply.facts["losses"] for reply in replies.values()]))
        if spreads[-1].smallest_share >= accepted_share(k):
            break
    # The evenest, then that of lowest loss, then the first.
    keys = [(spread.smallest_share, -spread.loss) for spread in spreads]
    best = keys.index(max(keys)) if keys else 0
    share = f"{spreads[best].smallest_share:.0%}" if spreads else "none"
    text = f"draw {best + 1} of {len(sets)} is kept: its smallest cluster suits {share} of those asked"
    return sets[best], Event("start_chosen", None, text)


class Spread(NamedTuple):
    """How the choices of some clients spread over K models."""

    smallest_share: float
    """Share of the clients that chose the model that fewest chose."""
    loss: float
    """Mean loss of the models chosen."""


def spread_of_choices(losses: Sequence[Sequence[float]]) -> Spread:
    """The spread of (clients, K) losses, each client choosing the lowest (the first of several)."""
    table = np.asarray(losses, dtype=np.float64)
    counts = np.bincount(table.argmin(axis=1), minlength=table.shape[1])
    return Spread(float(counts.min() / len(table)), float(table.min(axis=1).mean()))


def accepted_share(clusters: int) -> float:
    """Share of the clients that must choose every model of an accepted start.

    The authors have 0.35 for two models, 0.1 for four and 0 for one; between and beyond these, the power of K
    that goes through the first two.
    """
    return 0.35 * (2 / clusters) ** math.log2(3.5) if clusters > 1 else 0.0
