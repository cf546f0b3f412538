"""Payment: who pays for models, who gets them, and what is left for those who train.

The paper's rule: who gets a seat pays for it, everybody gets the models, consumers are reimbursed by the
printed equation, and all who deliver earn. A client that never trains then has everything for nothing. So
here, by default, everyone who is sent models pays for the clusters it bids for, and who paid gets the next
ones; the first rounds are free. Consumers are reimbursed whose own score fell short of their usual one,
contributions above 0 earn, and an update that earns is worth a subsidy. By either rule a client that has a
seat and delivers nothing loses its price.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.core import ClientId, ClientModels, Record, Replies, cluster_name, server_faults
from ipfl.core.arrays import Bools
from ipfl.market import settlement
from ipfl.market.bank import TokenManager
from ipfl.market.seating import Seating
from ipfl.methods.ipfl_plus.contribution import Accuracies, Psi
from ipfl.methods.ipfl_plus.importance import Preferences
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.seats import SeatRecord
from ipfl.methods.ipfl_plus.updates import Clusters

GAMMA = 0.1
"""γ, relative change from which on nothing, or all, is reimbursed."""


@dataclasses.dataclass(frozen=True)
class Access:
    """What clients paid for, and the models of those that stopped paying."""

    best: NDArray[np.float64]
    """(K,) Acc_kmax over earlier rounds, NaN = none yet."""
    usual_score: NDArray[np.float64]
    """(N, K) scores of the models as answered, smoothed over the rounds in which the client bid for them."""
    is_paying: Bools
    """(N,) whether each client paid when it was last asked; true before."""
    held: ClientModels | None
    """The models of clients that stopped paying, all K in one vector: those they last bought."""
    held_means: Mapping[int, Sequence[float]] = dataclasses.field(default_factory=dict)
    """Their mean accuracies, by row."""

    @classmethod
    def start(cls, n: int, k: int, held: ClientModels | None) -> Access:
        """Everybody has all models."""
        return cls(np.full(k, np.nan), np.full((n, k), np.nan), np.ones(n, bool), held)

    def held_offer(self, row: int, client: ClientId) -> Record | None:
        """The models that a client last bought, if it stopped paying."""
        if self.held is None or row not in self.held_means:
            return None
        means = self.held_means[row]
        models = np.split(self.held[client], len(means))
        named = {cluster_name(k): model for k, model in enumerate(models)}
        return Record(named, {"clusters": list(range(len(means))), "means": [*means]})

    def keep_bought_models(
        self, before: Access, clusters: Clusters, known: Preferences, run: RunFacts, round: int
    ) -> Access:
        """Clients that stopped paying in this round keep the models of before it, which they had paid for.

        Args:
            before: The record before the round.
            clusters: The models before it.
            known: Their mean accuracies among others.
            run: Facts of the run.
            round: Its number.
        """
        stopped = np.flatnonzero(before.is_paying & ~self.is_paying)
        back = {*np.flatnonzero(~before.is_paying & self.is_paying).tolist()}
        kept = {row: own for row, own in self.held_means.items() if row not in back}
        held = self.held
        if len(stopped):
            if held is None:
                raise ValueError("this setup has no store for models of single clients")
            bought = np.concatenate(clusters.models)
            held = held.put({int(client): bought for client in run.ids[stopped]}, round)
            kept |= dict.fromkeys(stopped.tolist(), known.means.tolist())
        return dataclasses.replace(self, held=held, held_means=dict(sorted(kept.items())))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A round's seats after the training."""

    seats: Seating
    payments: Bools
    """(N, K) who paid for which cluster."""
    psi: Psi
    accuracy: Accuracies


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Payment:
    """Prices, and who pays whom."""

    rule: Literal["willing", "paper", "none"] = Field(
        default="willing",
        description="willing: all who are sent models pay for their bids, and who paid gets models; "
        "paper: seats are paid for, all get models; none: bids as they are, but nobody pays or earns",
    )
    price: int = Field(default=100, ge=1, description="τ_p in tokens, the same for all")
    opening: int | None = Field(
        default=None, ge=1, description="opening balance; omitted: a price for every round, 100 at least"
    )
    trial_rounds: int = Field(
        default=5,
        ge=0,
        description="queries in which a new client gets the models for nothing, if the willing pay",
    )
    subsidy: float = Field(
        default=2.0,
        ge=0,
        le=100,
        description="prices issued into a cluster's pool for every update that earns, if the willing pay",
    )
    eta: float = Field(default=0.1, ge=0, le=1, description="η, largest share of a pool that is reimbursed")

    @property
    def moves_tokens(self) -> bool:
        """Whether anybody pays or earns."""
        return self.rule != "none"

    @property
    def settlement_rule(self) -> settlement.SettlementRule:
        """Who gets what of a pool."""
        if self.rule == "paper":
            return settlement.SettlementRule("printed", self.eta, GAMMA)
        issued = round(self.subsidy * self.price) if self.moves_tokens else 0
        return settlement.SettlementRule("shortfall", self.eta, GAMMA, issued)

    def entitled(self, access: Access, known: Preferences) -> Bools:
        """(N,) who gets the models of a query: those who paid for the last one, and all in free rounds."""
        if self.rule != "willing":
            return np.ones(len(access.is_paying), bool)
        return access.is_paying | (known.times_asked <= self.trial_rounds)

    def served(self, known: Preferences, round: int) -> Bools:
        """(N,) who pays for all its bids: those that were asked in this round; if only seats pay, nobody."""
        if self.rule == "paper":
            return np.zeros(len(known.asked), bool)
        return np.asarray((known.asked == round) & (known.times_asked > self.trial_rounds))

    def count_seats(self, per_round: int, paid: Bools, available: Bools) -> int:
        """The budget; where the willing pay, the share of it that those who could bid do pay for.

        So a seat earns as much when some abstain as when nobody does.
        """
        if self.rule != "willing":
            return per_round
        share = paid.any(axis=1).sum() / max(1, available.sum())
        return max(1, math.ceil(round(per_round * float(share), 9)))

    def refund_lost_seats(self, manager: TokenManager, run: RunFacts, lost: Bools, replies: Replies) -> Bools:
        """Refunds seats that delivered nothing, but only those lost through the server's own fault.

        Returns:
            The (N, K) seats that were refunded.
        """
        excused = lost & run.among(sorted(server_faults(replies)))[:, None]
        manager.refund(excused)
        return excused

    def settle(
        self,
        manager: TokenManager,
        access: Access,
        known: Preferences,
        seats: SeatRecord,
        outcome: Outcome,
    ) -> dict[int, float]:
        """Empties the pools: what is owed to consumers, the rest as rewards by rank.

        Returns:
            U_k of every cluster that had a provider.
        """
        payments, accuracy = outcome.payments & ~outcome.seats.excused, outcome.accuracy
        if not self.moves_tokens:
            manager.refund(payments)
            return {}
        served = settlement.Served(
            payments,
            outcome.seats.all,
            outcome.seats.delivered,
            outcome.psi,
            seats.omega,
            np.where(known.ranks >= 0, known.score, np.nan),  # no claim without a bid, which is on record
            access.usual_score,
        )
        best = access.best.tolist()
        return settlement.settle(
            manager,
            self.settlement_rule,
            served,
            {k: (accuracy.get(k, np.nan), b) for k, b in enumerate(best)},
        )

    def after_round(
        self,
        access: Access,
        known: Preferences,
        outcome: Outcome,
        clusters: Clusters,
        run: RunFacts,
        round: int,
    ) -> Access:
        """Who has access to what after a round; `clusters` are the models before it."""
        best = access.best.copy()
        for k, value in outcome.accuracy.items():
            best[k] = np.fmax(best[k], value)
        paying = outcome.payments.any(axis=1) | (known.times_asked <= self.trial_rounds)
        after = dataclasses.replace(
            access,
            best=best,
            usual_score=settlement.usual_score_after(access.usual_score, known.score, known.ranks >= 0),
            is_paying=np.where(known.asked == round, paying, access.is_paying),
        )
        return (
            after.keep_bought_models(access, clusters, known, run, round) if self.rule == "willing" else after
        )
