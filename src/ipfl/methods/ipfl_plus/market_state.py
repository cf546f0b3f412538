"""What the server knows of the market between rounds, and how a round changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ipfl.config.sections import AggregateConfig
from ipfl.core import ClientId, ClientModels, Event, Fact, Seat, Setup, Vector, cluster_name
from ipfl.core.vectors import mean
from ipfl.market import market_stats
from ipfl.market import payments as tokens
from ipfl.market.bank import Bank, opening_balances
from ipfl.market.bids import NO_BID, finite_or_none
from ipfl.market.market_arrays import Bools, Floats
from ipfl.market.market_rows import Contribution, Figure, brought_balances
from ipfl.methods.ipfl_plus.products import Way
from ipfl.methods.ipfl_plus.scheduler import Selection


@dataclass(frozen=True)
class MarketState:
    """The server's state; arrays have a row per client in ascending id, a column per cluster."""

    ids: NDArray[np.int64]
    """Client id of each row."""
    models: tuple[Vector, ...]
    """M_k."""
    alive: Bools
    """(K,) clusters in use; merged ones keep their column, so that a number means the same in all rounds."""
    bank: Bank
    bid_ranks: NDArray[np.int16]
    """(N, K) P_B: rank of each client's bids, 0 = most wanted, `NO_BID`."""
    importance: NDArray[np.float64]
    """(N, K) υ_ik as last answered, NaN = never."""
    means: NDArray[np.float64]
    """(K,) mean accuracy of each cluster model over the last query; ones before the first."""
    psi: NDArray[np.float64]
    """(N, K) remembered contributions ψ_ki, NaN = unknown."""
    record: NDArray[np.float64]
    """(N, K) mean agreement of a client's updates with the others', NaN = unknown; see `robust`."""
    usual_length: float
    """Smoothed median length of a round's updates, NaN = none yet; see `robust`."""
    omega: NDArray[np.int64]
    """(N, K) participation Ω_ki: rounds trained in the cluster."""
    best: NDArray[np.float64]
    """(K,) Acc_kmax over earlier rounds, NaN = none yet."""
    earned: NDArray[np.int64]
    """(N,) rewards so far."""
    per_round: int
    seed: int
    holdouts: tuple[ClientId, ...]
    """Under which ids the server can be asked about its own samples."""
    rule: AggregateConfig
    """How a cluster's updates become its model."""
    opening: int
    """Tokens that every client started with."""
    seats_had: NDArray[np.int64]
    """(N, K) seats that each client has had, delivered or not."""
    seats_net: NDArray[np.int64]
    """(N, K) tokens that they brought it."""
    score: NDArray[np.float64]
    """(N, K) score of each model on the client's points as answered in this round; NaN = not asked."""
    usual_score: NDArray[np.float64]
    """(N, K) the same, smoothed over the rounds in which the client bid for the cluster."""
    epochs: int
    """Of a training."""
    points: float
    """Mean number of points that a client scores models on, as answered last; NaN = not known."""
    samples: float
    """Mean number of samples that a client trains on, as answered last; NaN = not known."""
    release_round: int
    """Round from which on clients may train on the points that they score models on."""
    drawn: NDArray[np.int64]
    """(N,) round in which each client could last bid, −1 = never."""
    asked: NDArray[np.int64]
    """(N,) round in which each client was last asked for preferences, −1 = never."""
    times_asked: NDArray[np.int64]
    """(N,) how often."""
    is_paying: Bools
    """(N,) whether each client paid when it was last asked; true before."""
    held: ClientModels | None
    """The models of clients that stopped paying, all K in one vector: what they last bought."""
    held_facts: Mapping[int, tuple[Sequence[int], Sequence[float]]] = field(default_factory=dict)
    """Their numbers and mean accuracies, by row."""
    directions: tuple[Vector | None, ...] = ()
    """(K) M_k, the running direction of each cluster's updates."""
    chance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """(K,) V_k, what chance does to them; see `sharing`."""
    shared: float = 0.0
    """How much of their steps the clusters shared in the last round."""
    last_steps: tuple[tuple[Way, ...], ...] = field(default=(), metadata={"lasting": True})
    """(K) the last steps of each cluster's model, newest last: what everyone knows who bought it."""
    collapsed: bool = False
    merged: tuple[tuple[int, int, int], ...] = ()
    """(round, kept, dropped) of every merge under `clusters = "auto"`."""
    brought: Mapping[ClientId, int] = field(default_factory=dict)
    """Tokens that clients brought along from an earlier run, instead of the opening."""

    is_noisy: bool = False
    """Whether clients put noise on their updates (`privacy.noise`)."""

    @classmethod
    def start(cls, setup: Setup, clusters: int, opening: int, release_round: int) -> MarketState:
        """The market before the first round: K equal models, equal balances, no bids."""
        n, brought = len(setup.clients), brought_balances(setup)
        bank, _ = tokens.open_accounts(n, clusters, opening_balances(sorted(setup.clients), opening, brought))
        return cls(
            ids=np.asarray(sorted(setup.clients), np.int64),
            models=(setup.params,) * clusters,
            alive=np.ones(clusters, bool),
            bank=bank,
            bid_ranks=np.full((n, clusters), NO_BID, np.int16),
            importance=np.full((n, clusters), np.nan),
            means=np.ones(clusters),
            psi=np.full((n, clusters), np.nan),
            record=np.full((n, clusters), np.nan),
            usual_length=np.nan,
            omega=np.zeros((n, clusters), np.int64),
            best=np.full(clusters, np.nan),
            earned=np.zeros(n, np.int64),
            per_round=setup.per_round,
            seed=setup.seed,
            holdouts=setup.task.holdouts,
            rule=setup.config.aggregate,
            opening=opening,
            seats_had=np.zeros((n, clusters), np.int64),
            seats_net=np.zeros((n, clusters), np.int64),
            score=np.full((n, clusters), np.nan),
            usual_score=np.full((n, clusters), np.nan),
            epochs=setup.config.train.epochs,
            is_noisy=setup.config.privacy.is_on,
            release_round=release_round,
            points=np.nan,
            samples=np.nan,
            drawn=np.full(n, -1),
            asked=np.full(n, -1),
            times_asked=np.zeros(n, np.int64),
            is_paying=np.ones(n, bool),
            held=setup.client_models,
            directions=(None,) * clusters,
            chance=np.zeros(clusters),
            last_steps=((),) * clusters,
            brought=dict(brought),
        )

    @property
    def clusters(self) -> list[int]:
        """Numbers of the clusters in use."""
        return [int(k) for k in np.flatnonzero(self.alive)]

    @property
    def size(self) -> int:
        """Length of a model's vector."""
        return len(self.models[0])

    @property
    def named(self) -> dict[str, Vector]:
        """The models in use by name."""
        return {cluster_name(k): self.models[k] for k in self.clusters}

    def rows(self, clients: Sequence[ClientId]) -> NDArray[np.int64]:
        """Rows of these clients."""
        return np.searchsorted(self.ids, np.asarray(clients, np.int64)).astype(np.int64)

    @property
    def favourites(self) -> NDArray[np.int64]:
        """(N,) the cluster that each client wants most, −1 = it has no bid."""
        rank = np.where(self.bid_ranks >= 0, self.bid_ranks, np.iinfo(np.int16).max)
        return np.where((self.bid_ranks >= 0).any(axis=1), rank.argmin(axis=1), -1)

    def preferred(self) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        favourites = self.favourites
        rows = np.flatnonzero(favourites >= 0)
        return dict(zip(self.ids[rows].tolist(), favourites[rows].tolist(), strict=True))

    def account(self, row: int) -> dict[str, Fact]:
        """What a client is told of its own account with every query."""
        live = self.clusters
        return {
            "balance": int(self.bank.balances[row]),
            "seats": self.seats_had[row, live].tolist(),
            "net": self.seats_net[row, live].tolist(),
            "importance": np.nan_to_num(self.importance[row, live]).tolist(),
        }

    def seats(self, selection: Selection, delivered: Bools, excused: Bools) -> tuple[Seat, ...]:
        """All seats of a round."""
        return tuple(
            Seat(int(self.ids[row]), cluster, how, bool(delivered[row, cluster]), bool(excused[row, cluster]))
            for cluster in range(delivered.shape[1])
            for how, chosen in selection.by_reason(cluster)
            for row in np.sort(chosen)
        )

    def contributions(self, delivered: Bools, psi: Mapping[int, Floats]) -> tuple[Contribution, ...]:
        """ψ_ki and Ω_ki of all providers; to be asked of the state after the round."""
        return tuple(
            Contribution(int(self.ids[row]), k, finite_or_none(value), int(self.omega[row, k]))
            for k, values in psi.items()
            for row, value in zip(np.flatnonzero(delivered[:, k]), values, strict=True)
        )


def keep_bought_models(state: MarketState, after: MarketState, round: int) -> MarketState:
    """Clients that stopped paying in this round keep the models of before it, which they had paid for.

    Args:
        state: The state before the round.
        after: The state after it.
        round: Its number.
    """
    stopped = np.flatnonzero(state.is_paying & ~after.is_paying)
    back = np.flatnonzero(~state.is_paying & after.is_paying)
    facts = {row: own for row, own in state.held_facts.items() if row not in {*back.tolist()}}
    held = after.held
    if len(stopped):
        if held is None:
            raise ValueError("this setup has no store for models of single clients")
        bought = np.concatenate([state.models[k] for k in state.clusters])
        held = held.put({int(client): bought for client in state.ids[stopped]}, round)
        own = (state.clusters, state.means[state.clusters].tolist())
        facts |= dict.fromkeys(stopped.tolist(), own)
    return replace(after, held=held, held_facts=dict(sorted(facts.items())))


def report_warnings(state: MarketState, empty_seats: int, events: list[Event]) -> MarketState:
    """Adds an event for empty seats, and for a collapse when it begins."""
    if empty_seats:
        text = f"{empty_seats} of the seats stayed empty: too few clients bid, were there or could pay"
        events.append(Event("empty_seats", None, text))
    collapsed = bool(market_stats.is_collapsed((state.bid_ranks >= 0).sum(axis=0)[state.clusters]))
    if collapsed and not state.collapsed:
        events.append(Event("collapse", None, "collapse: one cluster gets nearly all bids"))
    return replace(state, collapsed=collapsed)


def merge_alike(state: MarketState, round: int, events: list[Event]) -> MarketState:
    """Makes one of every two clusters whose models serve the same bidders (`clusters = "auto"`).

    The kept model becomes the mean of both by their bidders: equal starts and alike data make them close.
    """
    live = state.clusters
    placed = state.bid_ranks[:, live] >= 0
    models, alive, bid_ranks = list(state.models), state.alive.copy(), state.bid_ranks.copy()
    merged = list(state.merged)
    for first, second in market_stats.merge_candidates(placed, state.importance[:, live]):
        keep, drop = live[first], live[second]
        bidders = [float(placed[:, first].sum()), float(placed[:, second].sum())]
        models[keep] = mean([models[keep], models[drop]], bidders if sum(bidders) else None)
        alive[drop] = False
        # The better of the two ranks: −1, no bid, is the largest unsigned number.
        both = np.minimum(bid_ranks[:, keep].astype(np.uint16), bid_ranks[:, drop].astype(np.uint16))
        bid_ranks[:, keep] = both.astype(np.int16)
        bid_ranks[:, drop] = NO_BID
        merged.append((round, keep, drop))
        text = f"cluster {drop} serves the same bidders as cluster {keep}: merged"
        events.append(Event("merge", None, text))
    return replace(state, models=tuple(models), alive=alive, bid_ranks=bid_ranks, merged=tuple(merged))


def fairness_report(state: MarketState, price: int) -> dict[str, Fact]:
    """Who has what, and whether rewards follow contributions (section Fairness)."""
    known = np.isfinite(state.psi)
    total = np.where(known, state.psi, 0).sum(axis=1)
    contribution = np.where(known.any(axis=1), total, np.nan)
    bids = (state.bid_ranks >= 0).sum(axis=0)
    return {
        "clusters": state.clusters,
        "merged": [list(step) for step in state.merged],
        "collapsed": state.collapsed,
        "shared": state.shared,
        "bid_share": [float(b) for b in bids / max(1, bids.sum())],
        "gini": market_stats.gini(state.bank.balances),
        "broke": [int(i) for i in state.ids[state.bank.balances < price]],
        "contribution_reward_correlation": market_stats.rank_correlation(
            contribution, state.earned.astype(np.float64)
        ),
        "balances": [int(b) for b in state.bank.balances],
        "issued": int(state.bank.issued),
    }


def figures(values: Mapping[int, float]) -> tuple[Figure, ...]:
    """A number for each cluster, as a round reports it."""
    return tuple(Figure(cluster, finite_or_none(value)) for cluster, value in values.items())
