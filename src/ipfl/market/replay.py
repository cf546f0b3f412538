"""Replays IP-FL's market: which transfers follow from the recorded bids, seats and contributions.

The rules are those of the round itself (`TokenManager`); here recorded rows become the tables that it takes.
What follows from earlier rounds (Ω_ki, Acc_kmax) is computed along the way and compared with the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipfl.core import ClientId, Fact, Seat
from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.ledger.lines import METRIC_KEYS, by_cluster
from ipfl.ledger.verify import ReplayedRound
from ipfl.market.bank import TokenAccounts, TokenManager, opening_transfers
from ipfl.market.bids import NO_BID
from ipfl.market.market_rows import Bid, Contribution
from ipfl.market.seating import Seating
from ipfl.market.settlement import Served, SettlementRule, settle, usual_score_after

MAX_CLUSTERS = 2**15 - 1
"""The cluster of a transfer is an int16."""


class ImpossibleError(Exception):
    """A record that cannot be true."""


class MarketReplay:
    """A replay of a market; keeps its state from round to round.

    Args:
        rules: `price`, `opening`, `eta`, `gamma`, `clusters`; may be left out: `incentive` (true),
            `settlement` ("printed"), `subsidy` (0), `brought` (none: tokens from an earlier run by client).
        clients: All clients that have an account.
    """

    def __init__(self, rules: Mapping[str, Fact], clients: Sequence[ClientId]):
        self.clusters, self.price = int(rules["clusters"]), int(rules["price"])
        if self.price < 1 or not 1 <= self.clusters <= MAX_CLUSTERS:
            raise ValueError(f"{self.clusters} clusters and a price of {self.price}")
        told = dict(rules.get("brought") or {})
        brought = {int(client): int(tokens) for client, tokens in told.items()}
        self.accounts = TokenAccounts.open(clients, self.clusters, int(rules["opening"]), brought)
        self.row = {client: row for row, client in enumerate(self.accounts.ids.tolist())}
        self.rule = SettlementRule(
            rules.get("settlement", "printed"),
            float(rules["eta"]),
            float(rules["gamma"]),
            int(rules.get("subsidy", 0)),
        )
        self.incentive = bool(rules.get("incentive", True))
        shape = self.accounts.net.shape
        self.omega, self.usual_score = np.zeros(shape, np.int64), np.full(shape, np.nan)
        self.best = np.full(self.clusters, np.nan)

    def opening(self) -> ReplayedRound:
        """What the opening must have moved."""
        accounts = self.accounts
        return ReplayedRound(opening_transfers(self.row, accounts.opening, accounts.brought))

    def round(self, line: Mapping[str, Any]) -> ReplayedRound:
        """What a round must have moved; nothing where the market was closed (a line without `bids`)."""
        if "bids" not in line:
            return ReplayedRound(())
        manager, complaint = TokenManager(self.accounts, self.price), None
        try:
            (self._replay_rolled_back if line.get("rolled_back") else self._replay)(manager, line)
        except (ImpossibleError, ValueError) as error:
            complaint = str(error)
        except (LookupError, TypeError, OverflowError) as error:  # rows that the database would have refused
            complaint = f"the round cannot be replayed: {error!r}"
        if complaint is None:
            self.accounts = self.accounts.after(manager)
        return ReplayedRound(tuple(manager.transfers), complaint)

    def _replay(self, manager: TokenManager, line: Mapping[str, Any]) -> None:
        """The steps of a round in the order of Algorithm 1."""
        ranks, score, served = self._bids(line["bids"])
        paid = manager.collect_bids(ranks)
        seats = self._seats(line.get("seats") or ())
        payments = manager.charge(paid, seats, served)
        lost = seats.all & ~seats.delivered & seats.excused
        manager.refund(lost)
        if self.incentive:
            self._settle(manager, payments & ~lost, seats, score, line)
        else:
            manager.refund(payments & ~lost)
        self.omega = self.omega + seats.delivered

    def _replay_rolled_back(self, manager: TokenManager, line: Mapping[str, Any]) -> None:
        """Only bids and their refunds."""
        manager.return_bids(self._bids(line["bids"])[0])
        if reported := [key for key in ("contributions", *METRIC_KEYS) if line.get(key)]:
            raise ImpossibleError(f"the round is rolled back, but reports {reported[0]}")

    def _bids(self, rows: Sequence[Bid]) -> tuple[Ints, Floats, Bools]:
        """(N, K) ranks of bids and what bidders said of the models, (N,) who pays for all its bids."""
        ranks, score = np.full(self.omega.shape, NO_BID), np.full(self.omega.shape, np.nan)
        served = np.zeros(len(self.row), bool)
        for bid in rows:
            place = self._place(bid.client, bid.cluster)
            ranks[place], score[place] = bid.rank, np.nan if bid.score is None else bid.score
            served[place[0]] |= bid.served
        return ranks, score, served

    def _place(self, client: ClientId, cluster: int) -> tuple[int, int]:
        """Row and column of a client and a cluster in the tables."""
        if client not in self.row or not 0 <= cluster < self.clusters:
            raise ImpossibleError(f"there is no client {client} or no cluster {cluster} in this run")
        return self.row[client], cluster

    def _seats(self, rows: Sequence[Seat]) -> Seating:
        """ζ_k, and what became of it."""
        seats = Seating.empty(self.omega.shape)
        for row in rows:
            place = self._place(row.client, row.cluster)
            (seats.selected if row.how == "performance" else seats.explorers)[place] = True
            seats.delivered[place], seats.excused[place] = row.delivered, row.excused
        return seats

    def _settle(
        self,
        manager: TokenManager,
        payments: Bools,
        seats: Seating,
        score: Floats,
        line: Mapping[str, Any],
    ) -> None:
        """Eqs. reimbursement_utility, reimbursement and reward_distribution of every cluster."""
        rows: Sequence[Contribution] = line.get("contributions") or ()
        recorded, delivered = {self._place(row.client, row.cluster): row for row in rows}, seats.delivered
        if {*recorded} != {*zip(*map(np.ndarray.tolist, np.nonzero(delivered)), strict=True)}:
            raise ImpossibleError("the contributions are not those of the seats that delivered")
        psi = {}
        for k in np.flatnonzero(delivered.any(axis=0)).tolist():
            providers = np.flatnonzero(delivered[:, k])
            contributions = [recorded[row, k] for row in providers.tolist()]
            psi[k] = np.array([np.nan if row.psi is None else row.psi for row in contributions])
            self._check_omega(k, providers, np.array([row.omega for row in contributions]))
        served = Served(payments, seats.all, delivered, psi, self.omega, score, self.usual_score)
        settle(manager, self.rule, served, self._accuracies(line))
        self.usual_score = usual_score_after(self.usual_score, score, np.isfinite(score))

    def _accuracies(self, line: Mapping[str, Any]) -> dict[int, tuple[float, float]]:
        """Acc_kr and Acc_kmax of every cluster; the latter follows from the rounds before."""
        accuracy, best_before = (by_cluster(line.get(key) or ()) for key in METRIC_KEYS)
        known = {}
        for k in range(self.clusters):
            best = None if np.isnan(self.best[k]) else float(self.best[k])
            if k in best_before and best_before[k] != best:
                raise ImpossibleError(
                    f"best accuracy of cluster {k} before is said to be {best_before[k]}, but was {best}"
                )
            now = np.nan if (a := accuracy.get(k)) is None else a
            known[k] = (now, float(self.best[k]))
            self.best[k] = np.fmax(self.best[k], now)
        return known

    def _check_omega(self, cluster: int, providers: Ints, omega: Ints) -> None:
        """Ω_ki follows from the rounds before."""
        right = self.omega[providers, cluster] + 1
        for client, recorded, count in zip(self.accounts.ids[providers], omega, right, strict=True):
            if recorded != count:
                raise ImpossibleError(
                    f"client {client} is said to have trained in cluster {cluster} {recorded} times, "
                    f"but did so {count} times"
                )
