"""The steps of the server's round, each a part of Algorithm 1; `method.IPFL.round` says in which order."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ipfl.core import (
    Ask,
    ClientId,
    Phases,
    Record,
    Replies,
    Roster,
    Round,
    Vector,
    cluster_name,
    server_faults,
    stream,
)
from ipfl.market import settlement
from ipfl.market.market_arrays import Bools, Floats
from ipfl.market.market_rows import Market
from ipfl.market.token_manager import TokenManager
from ipfl.methods.ipfl_plus import agreement, profiler, scheduler
from ipfl.methods.ipfl_plus.appraisal import Accuracies, Contributions, appraise, measure_accuracy
from ipfl.methods.ipfl_plus.guards import RECORD_DECAY, is_above_noise, usual_length_after
from ipfl.methods.ipfl_plus.market_state import MarketState, keep_bought_models
from ipfl.methods.ipfl_plus.preference_steps import PreferenceSteps
from ipfl.methods.ipfl_plus.products import Way
from ipfl.methods.ipfl_plus.sharing import SharedSteps, share_steps, variances
from ipfl.methods.ipfl_plus.updates import Updates, mean_samples, median_update_length
from ipfl.methods.shared.steps import average_models, expect_update, random_seats, select_clients

LOST_PRIORITY = -2.0
"""What is remembered as the contribution of a seat that delivered nothing, in standard scores."""


@dataclass(frozen=True)
class Appraisal:
    """What became of a round's updates, and what the profiler makes of them."""

    shared: SharedSteps
    """M_k after the round, and what it is made of."""
    psi: Contributions
    accuracy: Accuracies
    record: NDArray[np.float64]
    """(N, K) the clients' records, this round included."""


@dataclass(frozen=True)
class Outcome:
    """What became of a round's seats; (N, K) tables."""

    seats: Bools
    payments: Bools
    """Who paid for which cluster."""
    delivered: Bools
    lost: Bools
    """Seats that delivered nothing and were refunded."""
    updates: Updates
    appraised: Appraisal


class ServerSteps(PreferenceSteps):
    """What the server does in a round, step by step."""

    def train_as_one_model(self, state: MarketState, roster: Roster, round: int) -> Phases[MarketState]:
        """A round before the market opens: all clusters are one model, trained by random clients."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        name, model = cluster_name(0), state.models[0]
        to = {client: Record({name: model}) for client in chosen}
        replies = yield Ask("train", to, expect_update({name: state.size}))
        models = (average_models(replies, name, model, state.rule),) * len(state.models)
        return Round(replace(state, models=models), random_seats(chosen, replies), market=Market(()))

    def select(
        self, state: MarketState, manager: TokenManager, paid: Bools, available: Bools, round: int
    ) -> scheduler.Selection:
        """SelectClients(r): random in the first round, then N_p by bid and contribution and N_r at random."""
        rng = stream(state.seed, "select", round)
        live = state.clusters
        if not (state.bid_ranks >= 0).any() and not (state.asked >= 0).any():
            able = available & (manager.bank.balances >= self.price)
            return scheduler.first_round(able, state.per_round, len(live), rng).spread(
                live, len(state.models)
            )
        unexplored = float((state.omega.sum(axis=1) == 0).mean())
        n_r = scheduler.count_explorers(len(state.ids), unexplored, self.explore, self.explore_floor)
        if self.n_p is None:  # one seat per cluster if the budget has so many; never more than the budget
            budget = self.count_seats(state, paid, available)
            n_r = min(n_r, max(budget - len(live), 0))
            places = scheduler.count_places(budget - n_r, len(live), round)
        else:
            places = np.full(len(live), self.n_p)
        bidders = scheduler.Bidders(
            paid[:, live],
            state.bid_ranks[:, live],
            state.importance[:, live],
            state.psi[:, live],
            state.seats_had.sum(axis=1),
            available,
            manager.bank.balances,
        )
        rule = scheduler.BidderRule(self.order, self.beta, self.beta_psi, self.ration)
        chosen = scheduler.select(
            bidders, rule, price=self.price, places=places, n_r=n_r, rng=rng, explore_in=self.explore_in
        )
        return chosen.spread(live, len(state.models))

    def count_seats(self, state: MarketState, paid: Bools, available: Bools) -> int:
        """The budget; where the willing pay, the share of it that those who could bid do pay for.

        So a seat earns as much when some abstain as when nobody does.
        """
        if self.payers == "seated" or not self.moves_tokens:
            return state.per_round
        share = paid.any(axis=1).sum() / max(1, available.sum())
        return max(1, math.ceil(round(state.per_round * float(share), 9)))

    def served(self, state: MarketState, round: int) -> Bools:
        """(N,) who pays for all its bids: those that were asked in this round; if only seats pay, nobody."""
        if self.payers == "seated":
            return np.zeros(len(state.ids), bool)
        return np.asarray((state.asked == round) & (state.times_asked > self.trial_rounds))

    def aggregate_and_appraise(
        self, state: MarketState, updates: Updates
    ) -> Generator[Ask, Replies, Appraisal]:
        """M_k = FedAvg(U_k), and the profiler: ψ_ki of each cluster's providers, Acc_kr on their own data."""
        used = fair = {k: found.only(found.is_fair) for k, found in updates.items()}
        psi: Contributions = {}
        record = state.record
        if self.contribution == "momentum" and self.incentive:
            for k, found in fair.items():
                psi[k] = agreement.contributions_by_agreement(
                    found.products, found.shares(clip="clip" in self.guards), is_noisy=state.is_noisy
                )
                record = _with_record(state, record, k, found.clients, psi[k])
            # Noise for privacy looks like an update that nobody trained: the guard would drop them all.
            if "noise" in self.guards and not state.is_noisy:
                used = {
                    k: found.only(is_above_noise(record[state.rows(found.clients), k]))
                    for k, found in fair.items()
                }
        shared = self.move_models(state, used)
        accuracy: Accuracies = {}
        if self.contribution != "momentum" and self.incentive:
            psi, accuracy = yield from appraise(
                state, shared.models, fair, self.contribution, self.normalised
            )
        if self.reimburse == "printed" and self.incentive and not accuracy:
            accuracy = yield from measure_accuracy(shared.models, fair)
        spread = {k: _spread(values, updates[k].is_fair) for k, values in psi.items()}
        return Appraisal(shared, spread, accuracy, record)

    def move_models(self, state: MarketState, updates: Updates) -> SharedSteps:
        """M_k = FedAvg(U_k), with steps that are shared as far as chance explains their differences.

        A cluster with too few updates does not move by itself; who delivered them is paid nevertheless.
        """
        clip = "clip" in self.guards
        updates = {k: found for k, found in updates.items() if len(found.clients) >= state.rule.fewest}
        new = {k: found.mean(state.rule, clip=clip) for k, found in updates.items()}
        fixed = None if self.share == "auto" else self.share
        return share_steps(state, new, variances(updates, clip=clip), fixed)

    def after_round(
        self,
        state: MarketState,
        manager: TokenManager,
        outcome: Outcome,
        psi: NDArray[np.float64],
        round: int,
    ) -> MarketState:
        """What the server remembers of a round: models, balances, ψ, Ω, Acc_kmax, who paid."""
        best, appraised, seats = state.best.copy(), outcome.appraised, outcome.seats
        for k, value in appraised.accuracy.items():
            best[k] = np.fmax(best[k], value)
        asked = state.asked == round
        is_paying = outcome.payments.any(axis=1) | (state.times_asked <= self.trial_rounds)
        after = replace(
            state,
            models=appraised.shared.models,
            shared=appraised.shared.share,
            bank=manager.bank,
            psi=psi,
            record=appraised.record,
            usual_length=usual_length_after(state.usual_length, median_update_length(outcome.updates)),
            omega=state.omega + outcome.delivered,
            best=best,
            earned=state.earned + manager.earned,
            samples=mean_samples(outcome.updates, state.samples),
            seats_had=state.seats_had + seats,
            seats_net=state.seats_net + np.where(seats, manager.net, 0),
            usual_score=settlement.usual_score_after(state.usual_score, state.score, state.bid_ranks >= 0),
            is_paying=np.where(asked, is_paying, state.is_paying),
        )
        if self.contribution == "momentum" or self.share == "auto":
            after = replace(
                after,
                directions=appraised.shared.directions,
                chance=appraised.shared.chance,
                last_steps=_last_steps_after(state, after.models),
            )
        return keep_bought_models(state, after, round) if self.is_access_paid else after

    def remember_contributions(self, state: MarketState, outcome: Outcome) -> NDArray[np.float64]:
        """ψ_ki as the scheduler knows it from now on; a seat that delivered nothing counts against it."""
        remembered, omega = state.psi, state.omega + outcome.delivered
        for k, values in outcome.appraised.psi.items():
            providers = np.flatnonzero(outcome.delivered[:, k])
            if self.standardise:
                count, values = omega[providers, k], profiler.standard_scores(values)
                remembered = profiler.remember(remembered, providers, k, values, self.decay, count)
            else:
                remembered = profiler.remember(remembered, providers, k, values, self.decay)
        if self.forfeit and self.standardise:
            missing = outcome.seats & ~outcome.delivered & ~outcome.lost
            for k in range(missing.shape[1]):
                absent = np.flatnonzero(missing[:, k])
                lost = np.full(len(absent), LOST_PRIORITY)
                remembered = profiler.remember(remembered, absent, k, lost, self.decay, omega[absent, k] + 1)
        return remembered

    def settle(self, state: MarketState, manager: TokenManager, outcome: Outcome) -> dict[int, float]:
        """The token manager after training: what is owed to consumers, the rest as rewards by rank."""
        payments, accuracy = outcome.payments & ~outcome.lost, outcome.appraised.accuracy
        if not self.moves_tokens:
            manager.refund(payments)
            return {}
        return settlement.settle(
            manager,
            settlement.SettlementRule(
                self.reimburse, self.rewarded, self.eta, self.gamma, self.subsidy_tokens
            ),
            settlement.Served(
                payments,
                outcome.seats,
                outcome.delivered,
                outcome.appraised.psi,
                state.omega,
                state.score,
                state.usual_score,
            ),
            {k: (accuracy.get(k, np.nan), float(state.best[k])) for k in range(len(state.models))},
        )

    def refund_lost_seats(
        self, state: MarketState, manager: TokenManager, lost: Bools, replies: Replies
    ) -> Bools:
        """Refunds seats that delivered nothing through the server's own fault; all, if nobody forfeits.

        Returns:
            The (N, K) seats that were refunded.
        """
        if self.forfeit:
            lost = lost & np.isin(state.ids, sorted(server_faults(replies)))[:, None]
        manager.refund(lost)
        return lost


def _spread(values: NDArray[np.float64], which: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The values at their places among all providers; 0 for those that do not count."""
    psi = np.zeros(len(which))
    psi[which] = values
    return psi


def _with_record(
    state: MarketState, record: NDArray[np.float64], cluster: int, clients: Sequence[ClientId], psi: Floats
) -> NDArray[np.float64]:
    """The clients' records after these contributions to a cluster."""
    rows = state.rows(clients)
    count = state.omega[rows, cluster] + 1
    return profiler.remember(record, rows, cluster, psi, RECORD_DECAY, count)


def _last_steps_after(state: MarketState, models: Sequence[Vector]) -> tuple[tuple[Way, ...], ...]:
    """The last steps of every cluster, after its model moved."""
    steps = list(state.last_steps)
    for k, (old, new) in enumerate(zip(state.models, models, strict=True)):
        if new is not old:
            steps[k] = (*steps[k], (old, new))[-agreement.PUBLIC_STEPS :]
    return tuple(steps)
