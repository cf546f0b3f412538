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
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.market.seating import Seating, count_explorers

Ids = NDArray[np.int64]
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

    rule: Literal["draw", "paper"] = Field(
        default="draw",
        description="draw: bidders by weighted draw, explorers where they prefer; "
        "paper: bidders by contribution, explorers where they are drawn",
    )
    explore: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="N_r at first, as a share of the clients; falls with the unexplored share",
    )
    ration: float = Field(
        default=1.0,
        ge=0,
        description="weight of a client's seats so far against it in the draw of the bidders",
    )

    def choose(
        self,
        bidders: Bidders,
        record: SeatRecord,
        budget: int,
        price: int,
        round: int,
        rng: np.random.Generator,
    ) -> Seating:
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
        n_r = min(count_explorers(record.omega, self.explore), max(budget - clusters, 0))
        return self.select(bidders, record, count_places(budget - n_r, clusters, round), n_r, price, rng)

    def select(
        self,
        bidders: Bidders,
        record: SeatRecord,
        places: Ints,
        n_r: int,
        price: int,
        rng: np.random.Generator,
    ) -> Seating:
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
        seats, had = Seating.empty(bidders.paid.shape), z_scores(record.had.sum(axis=1).astype(np.float64))
        for k, n_p in enumerate(places.tolist()):
            rows = np.flatnonzero(bidders.paid[:, k] & bidders.available)
            importance, psi = bidders.importance[:, k], bidders.psi[:, k]
            if self.rule == "paper":
                rows = sort_bidders(rows, psi, rng)
            else:
                weight = BETA * z_scores(importance) + BETA_PSI * z_scores(psi) - self.ration * had
                rows = draw_bidders(rows, weight, rng)
            seats.selected[rows[:n_p], k] = True
        if self.rule == "paper":
            explore(seats, bidders, price, n_r, rng)
        else:  # seats for which nobody bid are dealt as well
            n_r += int(places.sum() - seats.selected.sum())
            explore_preferred(seats, bidders, price, n_r, rng)
        return seats


def first_round(available: Bools, seats: int, clusters: int, rng: np.random.Generator) -> Seating:
    """Round 0: random clients, each in one cluster, dealt out evenly. All seats are random ones.

    Args:
        available: (N,) who can be asked and can pay.
        seats: In all clusters together.
        clusters: K.
        rng: Of this round.
    """
    dealt = Seating.empty((len(available), clusters))
    chosen = rng.permutation(np.flatnonzero(available))[:seats]
    dealt.explorers[chosen, np.arange(len(chosen)) % clusters] = True
    return dealt


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


def draw_bidders(bidders: Ints, weight: Floats, rng: np.random.Generator) -> Ids:
    """The bidders of one cluster in the order of a weighted draw without replacement.

    The weight of a client is log w = β·z(υ_ik) + β_ψ·z(ψ_ki) − ration·z(Σ_k seats had). The last term rations
    seats: a client's own word (υ) brings it forward today, and the seats it then has take it back. The
    descending order of −log(−log u) + log w, a Gumbel variate plus log w, is that of log(u)/w (Efraimidis and
    Spirakis) without overflow.

    Args:
        bidders: Clients that bid for the cluster.
        weight: (N,) log w of all clients.
        rng: Of this round.
    """
    key = weight[bidders] + rng.gumbel(size=len(bidders))
    return bidders[np.lexsort((bidders, -key))].astype(np.int64)


def explore_preferred(
    seats: Seating, bidders: Bidders, price: int, n_r: int, rng: np.random.Generator
) -> None:
    """Deals random seats among the clients without one, each in the cluster of its most wanted paid bid.

    Clients that never answered explore any cluster. Only when nobody without a seat is left, clients with
    one take a second one in another cluster that they bid for.
    """
    paid, has_paid = bidders.paid, np.asarray(bidders.paid.any(axis=1))
    never_answered = ~has_paid & np.isnan(bidders.importance).all(axis=1)
    able = has_paid | (never_answered & (bidders.balances >= price))
    free = np.flatnonzero(bidders.available & able & ~seats.selected.any(axis=1))
    drawn = rng.permutation(free)[:n_r]
    anywhere = rng.integers(paid.shape[1], size=len(drawn))
    wanted = np.where(paid[drawn], bidders.ranks[drawn], np.iinfo(np.int16).max).argmin(axis=1)
    seats.explorers[drawn, np.where(never_answered[drawn], anywhere, wanted)] = True
    if left := n_r - len(drawn):
        row, cluster = np.nonzero(paid & bidders.available[:, None] & ~seats.all)
        second = rng.permutation(len(row))[:left]
        seats.explorers[row[second], cluster[second]] = True


def explore(seats: Seating, bidders: Bidders, price: int, n_r: int, rng: np.random.Generator) -> None:
    """Deals random seats of every cluster among all that have paid for it or still can."""
    spare = bidders.balances // price
    for k, quota in enumerate(rng.permutation(count_places(n_r, bidders.paid.shape[1], 0)).tolist()):
        paid = bidders.paid[:, k]
        able = np.flatnonzero(bidders.available & ~seats.selected[:, k] & (paid | (spare > 0)))
        drawn = rng.choice(able, min(quota, len(able)), replace=False)
        seats.explorers[drawn, k] = True
        spare[drawn[~paid[drawn]]] -= 1


def z_scores(values: Floats) -> NDArray[np.float64]:
    """Standard scores over all known values; 0 where unknown, or if all are the same."""
    known = np.isfinite(values)
    scores = np.zeros(len(values))
    if known.any():
        mean, deviation = values[known].mean(), values[known].std()
        if deviation > 1e-12 * abs(mean):
            scores[known] = (values[known] - mean) / deviation
    return scores
