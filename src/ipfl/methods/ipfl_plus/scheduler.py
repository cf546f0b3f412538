"""The scheduler: who trains in which cluster (section Scheduler, SelectClients of Algorithm 1).

Per cluster N_p of its bidders, sorted by bid and contribution, and N_r clients at random in all. Round 0
is random. The sort is a weighted draw without replacement by default: a plain sort by contribution never
breaks the symmetry of models that are still alike, a plain sort by bid trains the same few clients always.
An explorer trains in the cluster that it prefers itself: exploring is about unknown clients, not about wrong
clusters. All seats of the budget are dealt: what K does not divide goes to the clusters in turn, and seats
for which nobody bids go to further explorers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ipfl.errors import unknown
from ipfl.market.market_arrays import Bools, Floats, Ints, columns, nth_smallest

BidderOrder = Literal["draw", "top"]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """ζ_k of a round: the seats of every cluster."""

    performance: tuple[Ids, ...]
    """Per cluster the bidders selected by bid and contribution, best place first."""
    random: tuple[Ids, ...]
    """Per cluster the explorers, in the order drawn."""
    empty_seats: int
    """Seats that could not be filled."""

    def by_reason(
        self, cluster: int
    ) -> tuple[tuple[Literal["performance"], Ids], tuple[Literal["random"], Ids]]:
        """The seats of a cluster by why they were given, as `Seat.how` has it."""
        return ("performance", self.performance[cluster]), ("random", self.random[cluster])

    def seats(self, n: int) -> tuple[Bools, Bools]:
        """The same as two (N, K) tables, of performance and of random seats."""
        tables = np.zeros((2, n, len(self.random)), bool)
        for cluster, (chosen, explorers) in enumerate(zip(self.performance, self.random, strict=True)):
            tables[0, chosen, cluster] = True
            tables[1, explorers, cluster] = True
        return tables[0], tables[1]

    def spread(self, columns: Sequence[int], clusters: int) -> Selection:
        """The same seats in a wider table: cluster j of this one is `columns[j]` of `clusters`."""
        nobody = np.empty(0, np.int64)
        place = {column: position for position, column in enumerate(columns)}

        def wider(seats: tuple[Ids, ...]) -> tuple[Ids, ...]:
            return tuple(seats[place[k]] if k in place else nobody for k in range(clusters))

        return Selection(wider(self.performance), wider(self.random), self.empty_seats)


def count_explorers(n_clients: int, unexplored: float, start: float = 0.2, floor: float = 0.05) -> int:
    """N_r: `start` of all clients, falling in proportion to the share not yet explored, never under `floor`.

    N_r = ⌈N · max(floor, start · unexplored)⌉: rounded up, so that it is at least 1 and the floor holds.

    Args:
        n_clients: N.
        unexplored: Share of the clients that never had a seat.
        start: Share of N while nobody is explored.
        floor: Least share of N.
    """
    exact = n_clients * max(floor, start * unexplored)
    return math.ceil(round(exact, 9))  # 100·0.2·0.4 is 8, whatever the binary digits say


def first_round(available: Bools, seats: int, clusters: int, rng: np.random.Generator) -> Selection:
    """Round 0: random clients, each in one cluster, dealt out evenly. All seats are random ones.

    Args:
        available: (N,) who can be asked and can pay.
        seats: In all clusters together.
        clusters: K.
        rng: Of this round.
    """
    chosen = rng.permutation(np.flatnonzero(available))[:seats]
    nobody = np.empty(0, np.int64)
    dealt = tuple(chosen[cluster::clusters] for cluster in range(clusters))
    return Selection((nobody,) * clusters, dealt, seats - len(chosen))


def count_places(seats: int, clusters: int, turn: int) -> NDArray[np.int64]:
    """(K,) seats by performance of each cluster: all of them, what K does not divide in turn.

    Args:
        seats: In all clusters together.
        clusters: K.
        turn: Any number that grows by one a round: the cluster that comes first moves on with it.
    """
    base, rest = divmod(seats, clusters)
    return base + ((np.arange(clusters) - turn * rest) % clusters < rest).astype(np.int64)


def order_bidders(
    bidders: Ints,
    importance: Floats,
    psi: Floats,
    rng: np.random.Generator,
    order: BidderOrder = "draw",
    beta: float = 2.0,
    beta_psi: float = 0.5,
    first: int | None = None,
    ration: float = 0.0,
    seats_z: Floats | None = None,
) -> Ids:
    """S_c = sort(P_B, ψ_ki): the bidders of one cluster, whom to take first first.

    Weight of a client: log w = β·z(υ_ik) + β_ψ·z(ψ_ki) − ration·z(Σ_k Ω_ik), z over all clients of which the
    value is known; unknown (NaN) or constant values have z = 0. The last term rations seats: what a client
    says of itself (υ) brings it forward today, and the seats it then has take it back.

    Args:
        bidders: Clients that bid for the cluster.
        importance: (N,) υ_ik of all clients.
        psi: (N,) remembered ψ_ki of all clients.
        rng: Of this round.
        order: `draw`: weighted draw without replacement (Efraimidis and Spirakis: descending key log(u)/w;
            −log(−log u) + log w, a Gumbel variate plus log w, is the same order without overflow).
            `top`: descending w, ties by client id.
        beta: Weight of the bid.
        beta_psi: Weight of the contribution.
        first: Only so many from the top; None: all.
        ration: Weight of the seats that a client has had.
        seats_z: (N,) how many it has had, in standard scores; needed for `ration`.
    """
    if order not in get_args(BidderOrder):
        raise unknown("order", order, get_args(BidderOrder))
    key, term = z_scores(importance), z_scores(psi)
    key *= beta  # in place, here and below: every array of a million that is not needed costs time
    term *= beta_psi
    key += term
    if ration and seats_z is not None:
        key -= np.multiply(seats_z, ration, out=term)
    key = key[bidders]  # last: of a million clients nearly all may bid
    if order == "draw":
        key += rng.gumbel(size=len(bidders))
    if first is not None and first < len(bidders):
        # Sorting a million bidders for a few seats would cost more than all the rest.
        last = nth_smallest(key, len(key) - first) if first else np.inf
        best = np.flatnonzero(key >= last)
        bidders, key = bidders[best], key[best]
    return bidders[np.lexsort((bidders, -key))][:first].astype(np.int64)


@dataclass(frozen=True)
class BidderRule:
    """How the bidders of a cluster are sorted; see `order_bidders`."""

    order: BidderOrder = "draw"
    beta: float = 2.0
    beta_psi: float = 0.5
    ration: float = 0.0


@dataclass(frozen=True)
class Bidders:
    """What the scheduler knows of the clients; (N, K) tables unless it says otherwise."""

    paid: Bools
    """Bids in escrow."""
    ranks: Ints
    """Rank of each bid within the client's row, 0 = most wanted, −1 = no bid."""
    importance: Floats
    """υ; NaN = never answered."""
    psi: Floats
    """Remembered contributions, NaN = unknown."""
    seats_before: Ints
    """(N,) seats that each client has had."""
    available: Bools
    """(N,) who can be asked, and may get a seat in this round."""
    balances: Ints
    """(N,) after the auction."""


def select(
    bidders: Bidders,
    rule: BidderRule,
    *,
    price: int,
    places: Ints,
    n_r: int,
    rng: np.random.Generator,
    explore_in: Literal["preferred", "random"] = "preferred",
) -> Selection:
    """SelectClients for r > 0: bidders by bid and contribution, then others at random.

    A client may have seats in several clusters, one in each at most, and explores only what it can pay: by
    its bid in escrow for that very cluster, else from its balance.

    Args:
        bidders: What is known of them.
        rule: How they are sorted.
        price: τ_p.
        places: (K,) N_p of each cluster, seats by performance.
        n_r: N_r, random seats in all clusters together.
        rng: Of this round.
        explore_in: Where explorers train: in the cluster that they want most, or in any.
    """
    seats_z = z_scores(bidders.seats_before.astype(np.float64)) if rule.ration else None
    performance = tuple(
        order_bidders(
            np.flatnonzero(bidders.paid[:, k] & bidders.available),
            importance,
            psi,
            rng,
            rule.order,
            rule.beta,
            rule.beta_psi,
            int(places[k]),
            rule.ration,
            seats_z,
        )
        for k, (importance, psi) in enumerate(
            zip(columns(bidders.importance), columns(bidders.psi), strict=True)
        )
    )
    if explore_in == "preferred":  # seats for which nobody bid are dealt as well
        n_r += int(places.sum()) - sum(map(len, performance))
        random = _explore_preferred(performance, bidders, price, n_r, rng)
        wanted = n_r + sum(map(len, performance))
    else:
        affordable = bidders.balances // price
        random = _explore(performance, bidders.paid, bidders.available, affordable, n_r, rng)
        wanted = n_r + int(places.sum())
    filled = sum(len(ids) for ids in (*performance, *random))
    return Selection(performance, random, wanted - filled)


def _explore_preferred(
    performance: tuple[Ids, ...], bidders: Bidders, price: int, n_r: int, rng: np.random.Generator
) -> tuple[Ids, ...]:
    """Draws explorers among the clients without a seat, each for the cluster of its most wanted paid bid.

    Clients that never answered explore any cluster. Only when nobody without a seat is left, clients with
    one take a second one in another cluster that they bid for.
    """
    clusters = len(performance)
    is_seated = np.zeros(len(bidders.paid), bool)
    for rows in performance:
        is_seated[rows] = True
    has_paid = np.asarray(bidders.paid.any(axis=1))
    never_answered = ~has_paid
    never_answered[~has_paid] = np.isnan(bidders.importance[~has_paid]).all(axis=1)
    able = has_paid | (never_answered & (bidders.balances >= price))
    free = np.flatnonzero(bidders.available & able & ~is_seated)
    drawn = rng.permutation(free)[:n_r]
    anywhere = rng.integers(clusters, size=len(drawn))
    wanted = np.where(bidders.paid[drawn], bidders.ranks[drawn], np.iinfo(np.int16).max)
    random: Ids = np.where(never_answered[drawn], anywhere, wanted.argmin(axis=1))
    chosen = [drawn[random == k] for k in range(clusters)]
    if left := n_r - len(drawn):
        may_sit = bidders.paid & bidders.available[:, None]
        for k in range(clusters):
            may_sit[performance[k], k] = may_sit[chosen[k], k] = False
        row, cluster = np.nonzero(may_sit)
        second = rng.permutation(len(row))[:left]
        chosen = [np.append(chosen[k], row[second[cluster[second] == k]]) for k in range(clusters)]
    return tuple(rows.astype(np.int64) for rows in chosen)


def _explore(
    performance: tuple[Ids, ...],
    paid: Bools,
    available: Bools,
    affordable: Ints,
    n_r: int,
    rng: np.random.Generator,
) -> tuple[Ids, ...]:
    """Draws the explorers of every cluster; `affordable` is how many fees each client could still pay."""
    clusters = len(performance)
    budget = affordable.copy()
    random = [np.empty(0, np.int64)] * clusters
    turns = rng.permutation(clusters)
    left, progress = n_r, True
    while left and progress:
        before = left
        for turn, k in enumerate(turns):
            able = available & (paid[:, k] | (budget > 0))
            able[performance[k]] = able[random[k]] = False
            candidates = np.flatnonzero(able)
            quota = math.ceil(left / (clusters - turn))
            drawn = rng.choice(candidates, min(quota, len(candidates)), replace=False)
            budget[drawn[~paid[drawn, k]]] -= 1
            random[k] = np.concatenate([random[k], drawn])
            left -= len(drawn)
        progress = left < before
    return tuple(random)


def z_scores(values: Floats) -> NDArray[np.float64]:
    """Standard scores over all known values; 0 where unknown, or if all are the same."""
    where = np.flatnonzero(np.isfinite(values))
    known = np.asarray(values[where], np.float64)  # a copy, so that it can be changed in place
    if not len(known):
        return np.zeros(len(values))
    mean = known.mean()
    known -= mean
    deviation = np.sqrt(np.square(known).mean())
    if deviation <= 1e-12 * abs(mean):
        return np.zeros(len(values))
    known /= deviation
    if len(known) == len(values):
        return known
    scores = np.zeros(len(values))
    scores[where] = known
    return scores
