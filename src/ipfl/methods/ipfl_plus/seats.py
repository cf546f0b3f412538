"""Seats: who trains in which cluster (section Scheduler, SelectClients of Algorithm 1).

Per cluster N_p of its bidders, and N_r clients at random in all; round 0 is random. The paper sorts the
bidders by contribution alone and lets explorers train in the cluster that drew them: the same few clients
train over and over, and explorers do harm where they do not belong. So here, by default:

- bidders are drawn by weight (bid and contribution), and the seats that a client has had count against it: a
  plain sort by contribution never breaks the symmetry of models that are still alike, one by bid trains the
  same few clients always;
- an explorer trains in the cluster that it prefers itself: exploring is about unknown clients, not about
  wrong clusters;
- all seats of the budget are dealt: those for which nobody bids go to further explorers.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.market.market_arrays import Bools, Floats, Ints, columns, nth_smallest
from ipfl.market.seating import Seating

Ids = NDArray[np.int64]
EXPLORE_FLOOR = 0.05
"""N_r never falls under this share of the clients."""
BETA = 2.0
"""Weight of the importance in the order of the bidders."""
BETA_PSI = 0.5
"""Weight of the contribution in the order of the bidders."""


@dataclasses.dataclass(frozen=True)
class SeatRecord:
    """Who has had which seats so far."""

    had: NDArray[np.int64]
    """(N, K) seats that each client has had, delivered or not."""
    omega: NDArray[np.int64]
    """(N, K) participation Ω_ki: rounds trained in the cluster."""

    @classmethod
    def start(cls, n: int, k: int) -> SeatRecord:
        """Nobody had any."""
        return cls(np.zeros((n, k), np.int64), np.zeros((n, k), np.int64))

    def after(self, seats: Seating) -> SeatRecord:
        """With those of a round."""
        return SeatRecord(self.had + seats.all, self.omega + seats.delivered)

    @property
    def unexplored(self) -> float:
        """Share of the clients that never trained."""
        return float((self.omega.sum(axis=1) == 0).mean())


@dataclasses.dataclass(frozen=True)
class Selection:
    """ζ_k of a round: the seats of every cluster."""

    performance: tuple[Ids, ...]
    """Per cluster the bidders selected by bid and contribution, best place first."""
    random: tuple[Ids, ...]
    """Per cluster the explorers, in the order drawn."""
    empty_seats: int
    """Seats that could not be filled."""

    def seating(self, n: int) -> Seating:
        """The same as (N, K) tables, before anybody trains."""
        seats = Seating.empty((n, len(self.random)))
        for cluster, (chosen, explorers) in enumerate(zip(self.performance, self.random, strict=True)):
            seats.selected[chosen, cluster] = True
            seats.explorers[explorers, cluster] = True
        return seats


@dataclasses.dataclass(frozen=True)
class Bidders:
    """The clients as the scheduler sees them; (N, K) tables unless it says otherwise."""

    paid: Bools
    """Bids in escrow."""
    ranks: Ints
    """Rank of each bid within the client's row, 0 = most wanted, −1 = no bid."""
    importance: Floats
    """υ; NaN = never answered."""
    psi: Floats
    """Remembered contributions, NaN = unknown."""
    available: Bools
    """(N,) who can be asked, and may get a seat in this round."""
    balances: Ints
    """(N,) after the auction."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Seats:
    """Who gets the seats of a round."""

    rule: Annotated[
        Literal["draw", "paper"],
        Field(
            description="draw: bidders by weighted draw, explorers where they prefer; "
            "paper: bidders by contribution, explorers where they are drawn"
        ),
    ] = "draw"
    explore: Annotated[
        float,
        Field(
            ge=0, le=1, description="N_r at first, as a share of the clients; falls with the unexplored share"
        ),
    ] = 0.2
    ration: Annotated[
        float,
        Field(ge=0, description="weight of the seats a client has had against it in the draw of the bidders"),
    ] = 1.0

    def choose(
        self,
        bidders: Bidders,
        record: SeatRecord,
        budget: int,
        price: int,
        round: int,
        rng: np.random.Generator,
    ) -> Selection:
        """SelectClients for r > 0: N_p by bid and contribution, then N_r at random.

        At least one seat per cluster by bid and contribution if the budget has so many; never more than the
        budget.

        Args:
            bidders: What is known of the clients.
            record: Their seats so far.
            budget: Seats in all clusters together.
            price: τ_p.
            round: Its number.
            rng: Of this round.
        """
        clusters = bidders.paid.shape[1]
        n_r = count_explorers(len(bidders.paid), record.unexplored, self.explore)
        n_r = min(n_r, max(budget - clusters, 0))
        return self.select(bidders, record, count_places(budget - n_r, clusters, round), n_r, price, rng)

    def select(
        self,
        bidders: Bidders,
        record: SeatRecord,
        places: Ints,
        n_r: int,
        price: int,
        rng: np.random.Generator,
    ) -> Selection:
        """The same for these numbers of seats.

        A client may have seats in several clusters, one in each at most, and explores only what it can pay:
        by its bid in escrow for that very cluster, else from its balance.

        Args:
            bidders: What is known of the clients.
            record: Their seats so far.
            places: (K,) N_p of each cluster, seats by performance.
            n_r: N_r, random seats in all clusters together.
            price: τ_p.
            rng: Of this round.
        """
        is_draw = self.rule == "draw"
        seats_z = z_scores(record.had.sum(axis=1).astype(np.float64)) if is_draw and self.ration else None
        performance: tuple[Ids, ...] = ()
        tables = zip(columns(bidders.importance), columns(bidders.psi), strict=True)
        for k, (importance, psi) in enumerate(tables):
            rows = np.flatnonzero(bidders.paid[:, k] & bidders.available)
            if is_draw:
                rows = draw_bidders(rows, importance, psi, rng, int(places[k]), self.ration, seats_z)
            else:
                rows = sort_bidders(rows, psi, rng)[: places[k]]
            performance = (*performance, rows)
        if is_draw:  # seats for which nobody bid are dealt as well
            n_r += int(places.sum()) - sum(map(len, performance))
            random = _explore_preferred(performance, bidders, price, n_r, rng)
            wanted = n_r + sum(map(len, performance))
        else:
            random = _explore(performance, bidders, price, n_r, rng)
            wanted = n_r + int(places.sum())
        filled = sum(len(ids) for ids in (*performance, *random))
        return Selection(performance, random, wanted - filled)


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


def count_explorers(n_clients: int, unexplored: float, start: float) -> int:
    """N_r = ⌈N · max(`EXPLORE_FLOOR`, start · unexplored)⌉.

    `start` of all clients, falling in proportion to the share not yet explored; rounded up, so that it is at
    least 1 and the floor holds.

    Args:
        n_clients: N.
        unexplored: Share of the clients that never had a seat.
        start: Share of N while nobody is explored.
    """
    exact = n_clients * max(EXPLORE_FLOOR, start * unexplored)
    return math.ceil(round(exact, 9))  # 100·0.2·0.4 is 8, whatever the binary digits say


def count_places(seats: int, clusters: int, turn: int) -> NDArray[np.int64]:
    """(K,) seats by performance of each cluster: all of them, what K does not divide in turn.

    Args:
        seats: In all clusters together.
        clusters: K.
        turn: Any number that grows by one a round: the cluster that comes first moves on with it.
    """
    base, rest = divmod(seats, clusters)
    return base + ((np.arange(clusters) - turn * rest) % clusters < rest).astype(np.int64)


def sort_bidders(bidders: Ints, psi: Floats, rng: np.random.Generator) -> Ids:
    """S_c = sort(P_B, ψ_ki): descending contribution, 0 where none is known, equal ones in random order."""
    arrived = rng.permutation(bidders)
    return arrived[np.argsort(-np.nan_to_num(psi[arrived], nan=0.0), kind="stable")].astype(np.int64)


def draw_bidders(
    bidders: Ints,
    importance: Floats,
    psi: Floats,
    rng: np.random.Generator,
    first: int,
    ration: float = 0.0,
    seats_z: Floats | None = None,
) -> Ids:
    """The first bidders of one cluster in a weighted draw without replacement.

    Weight of a client: log w = β·z(υ_ik) + β_ψ·z(ψ_ki) − ration·z(Σ_k Ω_ik), z over all clients of which the
    value is known; unknown (NaN) or constant values have z = 0. The last term rations seats: a client's own
    word (υ) brings it forward today, and the seats it then has take it back. The descending order of
    −log(−log u) + log w, a Gumbel variate plus log w, is that of log(u)/w (Efraimidis and Spirakis) without
    overflow.

    Args:
        bidders: Clients that bid for the cluster.
        importance: (N,) υ_ik of all clients.
        psi: (N,) remembered ψ_ki of all clients.
        rng: Of this round.
        first: How many.
        ration: Weight of the seats that a client has had.
        seats_z: (N,) how many it has had, in standard scores; needed for `ration`.
    """
    key, term = z_scores(importance), z_scores(psi)
    key *= BETA  # in place, here and below: every array of a million that is not needed costs time
    term *= BETA_PSI
    key += term
    if ration and seats_z is not None:
        key -= np.multiply(seats_z, ration, out=term)
    key = key[bidders]  # last: of a million clients nearly all may bid
    key += rng.gumbel(size=len(bidders))
    if first < len(bidders):
        # Sorting a million bidders for a few seats would cost more than all the rest.
        last = nth_smallest(key, len(key) - first) if first else np.inf
        best = np.flatnonzero(key >= last)
        bidders, key = bidders[best], key[best]
    return bidders[np.lexsort((bidders, -key))][:first].astype(np.int64)


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
    performance: tuple[Ids, ...], bidders: Bidders, price: int, n_r: int, rng: np.random.Generator
) -> tuple[Ids, ...]:
    """Draws the explorers of every cluster among all that have paid for it or still can."""
    clusters, paid = len(performance), bidders.paid
    budget = bidders.balances // price
    random = [np.empty(0, np.int64)] * clusters
    turns = rng.permutation(clusters)
    left, progress = n_r, True
    while left and progress:
        before = left
        for turn, k in enumerate(turns):
            able = bidders.available & (paid[:, k] | (budget > 0))
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
