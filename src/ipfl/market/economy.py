"""State of the market between rounds, and the books of one round.

`Economy` is all that the server knows: models, accounts, bids, contributions. `Books` carries the accounts
through one round and keeps every transfer, so that what a round moved is recorded with its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ipfl.config import AggregateConfig
from ipfl.core import ClientId, Fact, Replies, Setup, Vector
from ipfl.market import Bools, Floats, Ints, health, profiler, tokens
from ipfl.market.guard import temper
from ipfl.market.ledger import Bank, Transfers, statement
from ipfl.market.preferences import importance
from ipfl.market.scheduler import Selection
from ipfl.params import mean


@dataclass(frozen=True)
class Economy:
    """The server's state; arrays have a row per client in ascending id, a column per cluster."""

    ids: NDArray[np.int64]
    """Client id of each row."""
    models: tuple[Vector, ...]
    """M_k."""
    alive: Bools
    """(K,) clusters in use; merged ones keep their column, so that a number means the same in all rounds."""
    bank: Bank
    wanted: NDArray[np.int64]
    """(N, K) P_B: rank of each client's bids, 0 = most wanted, −1 = no bid."""
    strength: NDArray[np.float64]
    """(N, K) υ_ik as last answered, NaN = never."""
    means: NDArray[np.float64]
    """(K,) mean accuracy of each cluster model over the last query; ones before the first."""
    psi: NDArray[np.float64]
    """(N, K) remembered contributions ψ_ki, NaN = unknown."""
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
    rule: AggregateConfig = field(default_factory=AggregateConfig)
    """How a cluster's updates become its model."""
    receipts: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """(cluster, net tokens) of each seat a client had since it was last told, by row."""
    collapsed: bool = False
    merged: tuple[tuple[int, int, int], ...] = ()
    """(round, kept, dropped) of every merge under `clusters = "auto"`."""

    @property
    def clusters(self) -> list[int]:
        """Numbers of the clusters in use."""
        return [int(k) for k in np.flatnonzero(self.alive)]

    def rows(self, clients: Sequence[ClientId]) -> NDArray[np.int64]:
        """Rows of these clients."""
        return np.searchsorted(self.ids, np.asarray(clients, np.int64)).astype(np.int64)

    @property
    def size(self) -> int:
        """Length of a model's vector."""
        return len(self.models[0])

    def preferred(self) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        rank = np.where(self.wanted >= 0, self.wanted, np.iinfo(np.int64).max)
        rows = np.flatnonzero((self.wanted >= 0).any(axis=1))
        return {int(self.ids[row]): int(rank[row].argmin()) for row in rows}

    def named(self) -> dict[str, Vector]:
        """The models in use by name."""
        return {cluster_name(k): self.models[k] for k in self.clusters}


def cluster_name(cluster: int) -> str:
    """Name of a cluster's model in records and files."""
    return f"cluster_{cluster}"


def open_economy(setup: Setup, clusters: int, opening: int) -> Economy:
    """The market before the first round: K equal models, equal balances, no bids."""
    n = len(setup.clients)
    bank, _ = tokens.open_accounts(n, clusters, opening)
    return Economy(
        ids=np.asarray(sorted(setup.clients), np.int64),
        models=(setup.params,) * clusters,
        alive=np.ones(clusters, bool),
        bank=bank,
        wanted=np.full((n, clusters), -1),
        strength=np.full((n, clusters), np.nan),
        means=np.ones(clusters),
        psi=np.full((n, clusters), np.nan),
        omega=np.zeros((n, clusters), np.int64),
        best=np.full(clusters, np.nan),
        earned=np.zeros(n, np.int64),
        per_round=setup.per_round,
        seed=setup.seed,
        holdouts=setup.holdouts,
        rule=setup.aggregate or AggregateConfig(),
    )


def answered(economy: Economy, replies: Replies, events: list[str], *, guarded: bool = False) -> Economy:
    """The bids and hit counts of a preference query, for as many clients as gave a sensible answer.

    Their receipts are told now; everyone else keeps earlier bids and learns of receipts next time. In a
    guarded market extreme claims are tempered, and clients count alike, however many points they claim.
    """
    live = economy.clusters
    wanted, strength = economy.wanted.copy(), economy.strength.copy()
    accuracy: dict[int, NDArray[np.float64]] = {}
    points: list[int] = []
    for client, row in zip(replies, economy.rows(list(replies)).tolist(), strict=True):
        said = _sensible(replies[client].facts, live)
        if said is None:
            events.append(f"client {client} answered the preference query with nonsense; its old bids stand")
            continue
        order, hits, n = said
        accuracy[row] = hits / max(n, 1)
        points.append(n)
        wanted[row] = -1
        wanted[row, order] = np.arange(len(order))
    if not accuracy:
        return economy
    table = np.stack(list(accuracy.values()))
    table = temper(table, economy.rule.hostile) if guarded else table
    for row, shares in zip(accuracy, table, strict=True):
        strength[row, live] = importance(shares, economy.means[live])
    means = economy.means.copy()
    means[live] = np.average(table, axis=0, weights=None if guarded else np.maximum(points, 1))
    untold = {row: told for row, told in economy.receipts.items() if row not in accuracy}
    return replace(economy, wanted=wanted, strength=strength, means=means, receipts=untold)


def _sensible(
    facts: Mapping[str, Fact], clusters: list[int]
) -> tuple[list[int], NDArray[np.float64], int] | None:
    """Bids, hits and points of an answer; None if they cannot be true."""
    try:
        order = [int(k) for k in facts["bids"]]
        hits = np.asarray(facts["hits"], np.float64)
        n = int(facts["n"])
    except (KeyError, TypeError, ValueError):
        return None
    counted = hits.shape == (len(clusters),) and bool(((hits >= 0) & (hits <= n)).all())
    distinct = len(set(order)) == len(order) and set(order) <= set(clusters)
    return (order, hits, n) if counted and distinct else None


def assigned(economy: Economy, cluster: Ints) -> Economy:
    """Everyone bids for one given cluster: initial clustering, or random bids without incentives."""
    wanted = np.full_like(economy.wanted, -1)
    wanted[np.arange(len(wanted)), cluster] = 0
    return replace(economy, wanted=wanted)


def watch(economy: Economy, empty: int, events: list[str]) -> Economy:
    """Says aloud what goes wrong: empty seats, and a collapse when it begins."""
    if empty:
        events.append(f"{empty} of the seats stayed empty: too few clients bid, were there or could pay")
    collapsed = bool(health.collapse((economy.wanted >= 0).sum(axis=0)[economy.clusters]))
    if collapsed and not economy.collapsed:
        events.append("collapse: one cluster gets nearly all bids")
    return replace(economy, collapsed=collapsed)


def merge_alike(economy: Economy, round: int, events: list[str]) -> Economy:
    """Makes one of every two clusters whose models serve the same bidders (`clusters = "auto"`).

    The kept model becomes the mean of both by their bidders: equal starts and alike data make them close.
    """
    live = economy.clusters
    placed = economy.wanted[:, live] >= 0
    models, alive, wanted = list(economy.models), economy.alive.copy(), economy.wanted.copy()
    merged = list(economy.merged)
    for first, second in health.merge_candidates(placed, economy.strength[:, live]):
        keep, drop = live[first], live[second]
        bidders = [float(placed[:, first].sum()), float(placed[:, second].sum())]
        models[keep] = mean([models[keep], models[drop]], bidders if sum(bidders) else None)
        alive[drop] = False
        wanted[:, keep] = np.maximum(wanted[:, keep], wanted[:, drop])
        wanted[:, drop] = -1
        merged.append((round, keep, drop))
        events.append(f"cluster {drop} serves the same bidders as cluster {keep}: merged")
    return replace(economy, models=tuple(models), alive=alive, wanted=wanted, merged=tuple(merged))


class Books:
    """The accounts on their way through one round; every step posts its transfers."""

    def __init__(self, bank: Bank, price: int):
        self.bank = bank
        self.price = price
        self._parts: list[Transfers] = []

    @property
    def transfers(self) -> Transfers:
        """All transfers so far."""
        return Transfers.concat(*self._parts)

    def _post(self, step: tuple[Bank, Transfers]) -> None:
        self.bank, transfers = step
        self._parts.append(transfers)

    def allowance(self, amount: int) -> None:
        """Issues the same income to all, if there is one."""
        if amount:
            self._post(tokens.allowance(self.bank, amount))

    def auction(self, wanted: Ints) -> Bools:
        """Eq. consumer_cost; returns which bids lie in escrow."""
        bank, transfers, paid = tokens.auction(self.bank, wanted, self.price)
        self._post((bank, transfers))
        return paid

    def call_off(self, wanted: Ints) -> None:
        """A void round: every bid goes into escrow and back, and nobody sits."""
        paid = self.auction(wanted)
        nobody = np.zeros_like(paid)
        self._post(tokens.seat(self.bank, paid, nobody, nobody, self.price))

    def seat(self, paid: Bools, selection: Selection) -> Bools:
        """Eq. update_available_tokens; returns the (N, K) seats."""
        chosen, random = selection.seats(len(paid))
        self._post(tokens.seat(self.bank, paid, chosen, random, self.price))
        return chosen | random

    def give_back(self, seats: Bools) -> None:
        """Refunds the seats of clients that did not deliver."""
        self._post(tokens.give_back(self.bank, seats, self.price))

    def settle(
        self, cluster: int, providers: Ints, psi: Floats, omega: Ints, share: float, *, positive: bool = False
    ) -> None:
        """Eq. reimbursement and Eq. reward_distribution; the pool is empty afterwards."""
        self._post(tokens.reimburse(self.bank, cluster, providers, share))
        self._post(tokens.reward(self.bank, cluster, providers, psi, omega, providers, positive=positive))

    @property
    def earned(self) -> NDArray[np.int64]:
        """(N,) rewards of this round."""
        return statement(self.transfers, len(self.bank.balances)).earned

    def receipts(self, seats: Bools) -> dict[int, list[tuple[int, int]]]:
        """(cluster, net tokens) of every seat of this round, by row: what each client is told."""
        told: dict[int, list[tuple[int, int]]] = {}
        transfers = self.transfers
        for cluster in range(seats.shape[1]):
            net = statement(transfers, len(seats), cluster).net
            for row in np.flatnonzero(seats[:, cluster]):
                told.setdefault(int(row), []).append((cluster, int(net[row])))
        return told

    def entries(self, ids: NDArray[np.int64]) -> list[list[Fact]]:
        """The transfers as rows [kind, source, target, amount, cluster, client], clients by their ids."""
        name = [int(i) for i in ids]
        return [
            [
                transfer.kind.name.lower(),
                name[transfer.source] if transfer.source >= 0 else transfer.source,
                name[transfer.target] if transfer.target >= 0 else transfer.target,
                transfer.amount,
                transfer.cluster,
                name[transfer.client],
            ]
            for transfer in self.transfers
        ]


def after_round(
    economy: Economy,
    books: Books,
    models: tuple[Vector, ...],
    delivered: Bools,
    psi: Mapping[int, NDArray[np.float64]],
    accuracy: Mapping[int, float],
    decay: float,
) -> Economy:
    """What the server remembers of a round: models, balances, ψ, Ω, Acc_kmax, and receipts not yet told."""
    remembered, best = economy.psi, economy.best.copy()
    for k, contributions in psi.items():
        remembered = profiler.remember(remembered, np.flatnonzero(delivered[:, k]), k, contributions, decay)
        best[k] = np.fmax(best[k], accuracy.get(k, np.nan))
    new, old = books.receipts(delivered), economy.receipts
    return replace(
        economy,
        models=models,
        bank=books.bank,
        psi=remembered,
        omega=economy.omega + delivered,
        best=best,
        earned=economy.earned + books.earned,
        receipts={row: [*old.get(row, ()), *new.get(row, ())] for row in sorted({*old, *new})},
    )


def fairness(economy: Economy, price: int) -> dict[str, Fact]:
    """Who has what, and whether rewards follow contributions (section Fairness)."""
    known = np.isfinite(economy.psi)
    total = np.where(known, economy.psi, 0).sum(axis=1)
    contribution = np.where(known.any(axis=1), total, np.nan)
    bids = (economy.wanted >= 0).sum(axis=0)
    return {
        "clusters": economy.clusters,
        "merged": [list(step) for step in economy.merged],
        "collapsed": economy.collapsed,
        "bid_share": [float(b) for b in bids / max(1, bids.sum())],
        "gini": health.gini(economy.bank.balances),
        "broke": [int(i) for i in economy.ids[economy.bank.balances < price]],
        "contribution_reward_correlation": health.rank_correlation(
            contribution, economy.earned.astype(np.float64)
        ),
        "balances": [int(b) for b in economy.bank.balances],
        "issued": int(economy.bank.issued),
    }


def or_null(value: float) -> float | None:
    """JSON has no NaN: what is not a number is null; and −0 is 0, as databases have it."""
    return float(value) + 0.0 if np.isfinite(value) else None


def rows_of(ids: NDArray[np.int64], table: Ints, where: Bools) -> list[list[Fact]]:
    """Rows [client, cluster, value] of the chosen entries of an (N, K) table."""
    places = zip(*np.nonzero(where), strict=True)
    return [[int(ids[row]), int(cluster), int(table[row, cluster])] for row, cluster in places]


def seat_rows(ids: NDArray[np.int64], selection: Selection, delivered: Bools) -> list[list[Fact]]:
    """Rows [client, cluster, how, delivered] of all seats; `how` is `performance` or `random`."""
    return [
        [int(ids[row]), cluster, how, bool(delivered[row, cluster])]
        for cluster in range(delivered.shape[1])
        for how, chosen in (("performance", selection.performance), ("random", selection.random))
        for row in np.sort(chosen[cluster])
    ]


def contribution_rows(after: Economy, delivered: Bools, psi: Mapping[int, Floats]) -> list[list[Fact]]:
    """Rows [client, cluster, ψ_ki, Ω_ki] of all providers, Ω with this round."""
    return [
        [int(after.ids[row]), k, or_null(value), int(after.omega[row, k])]
        for k, values in psi.items()
        for row, value in zip(np.flatnonzero(delivered[:, k]), values, strict=True)
    ]
