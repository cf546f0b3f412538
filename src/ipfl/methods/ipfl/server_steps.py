"""The steps of the server's round, each a part of Algorithm 1; `method.IPFL.round` says in which order."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np

from ipfl.core import (
    Ask,
    ClientId,
    Market,
    Phases,
    Record,
    Replies,
    Roster,
    Round,
    Vector,
    cluster_name,
    stream,
)
from ipfl.methods.ipfl import scheduler, tokens
from ipfl.methods.ipfl.appraisal import (
    Accuracies,
    Contributions,
    Updates,
    appraise,
    typical_accuracy,
)
from ipfl.methods.ipfl.arrays import Bools
from ipfl.methods.ipfl.client_side import ClientSide
from ipfl.methods.ipfl.state import MarketState
from ipfl.methods.ipfl.token_manager import TokenManager
from ipfl.methods.ipfl.updates import aggregate_updates, judge_updates
from ipfl.methods.steps import average_models, expect_update, random_seats, select_clients


class ServerSteps(ClientSide):
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
        if not (state.bid_ranks >= 0).any():
            able = available & (manager.bank.balances >= self.price)
            return scheduler.first_round(able, state.per_round, len(live), rng)
        unexplored = float((state.omega.sum(axis=1) == 0).mean())
        n_r = scheduler.count_explorers(len(state.ids), unexplored, self.explore, self.explore_floor)
        if self.n_p is None:  # one seat per cluster at least, and no more trainings than other methods have
            n_r = min(n_r, max(state.per_round - len(live), 0))
        chosen = scheduler.select(
            paid[:, live],
            state.importance[:, live],
            state.psi[:, live],
            available,
            manager.bank.balances,
            price=self.price,
            n_p=self.n_p or max(1, (state.per_round - n_r) // len(live)),
            n_r=n_r,
            rng=rng,
            order=self.order,
            beta=self.beta,
            beta_psi=self.beta_psi,
        )
        return chosen.spread(live, len(state.models))

    def aggregate_and_appraise(
        self, state: MarketState, updates: Updates
    ) -> Generator[Ask, Replies, tuple[tuple[Vector, ...], Contributions, Accuracies]]:
        """M_k = FedAvg(U_k), and the profiler: ψ_ki of each cluster's providers, Acc_kr on their own data."""
        if self.robust:
            by_server = self.contribution == "server"
            models, psi = yield from judge_updates(state, updates, self.decay, server=by_server)
            return models, psi, (yield from typical_accuracy(models, updates))
        models = aggregate_updates(state, updates)
        if not self.incentive:
            return models, {}, {}
        psi, accuracy = yield from appraise(state, models, updates, self.contribution, self.normalised)
        return models, psi, accuracy

    def settle(
        self,
        state: MarketState,
        manager: TokenManager,
        delivered: Bools,
        psi: Contributions,
        accuracy: Accuracies,
    ) -> dict[int, float]:
        """The token manager after training: reimbursement by utility, the rest as rewards by rank."""
        if not self.incentive:
            manager.refund_seats(delivered)
            return {}
        shares = {}
        for k, contributions in psi.items():
            providers = np.flatnonzero(delivered[:, k])
            shares[k] = tokens.utility(accuracy.get(k, np.nan), state.best[k], self.eta, self.gamma)
            omega = state.omega[providers, k] + 1
            manager.settle(k, providers, contributions, omega, shares[k], positive=self.robust)
        return shares

    def offer(self, state: MarketState, client: ClientId) -> Record:
        """All cluster models, and how well they do on average: what Eq. importance_weights needs."""
        return Record(
            state.named, {"clusters": state.clusters, "means": state.means[state.clusters].tolist()}
        )
