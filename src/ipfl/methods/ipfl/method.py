"""IP-FL: clients score K cluster models on their own data, bid for them with tokens, train and mix them.

Khan et al., IP-FL: Incentivized and Personalized Federated Learning. `round` is Algorithm 1, whose lines the
comments name; its steps are here and in `server_steps`, Algorithm 2 in `client_side`.

Departures from the print, with the reasons in docs/reading.md:
- n_k of Eq. importance_weights is the cluster's total over the clients asked (relative weights); hits are
  counted on held-back `probe` points, by probability (`hits = "soft"`) or by count.
- The bidders of line 19 are sorted by a weighted draw (`order = "draw"`); a plain sort (`"top"`) trains the
  same few clients over and over. N_r is the number of explorers of the whole round.
- Eq. reimbursement returns the share U of the pool to those who paid; N_r in Eq. reward_distribution is
  the number of providers. Both keep the sum of all tokens as it is.
- The gradient of the Shapley approximation comes from the participants' `probe` by default.
- Beyond the paper: `warmup` rounds as one model, other mixes than the paper's, fine-tuning of a
  client's mix on evidence (`adapt`), `clusters = "auto"`, `robust`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ipfl.core import (
    Ask,
    ClientId,
    Event,
    Market,
    Method,
    Phases,
    Replies,
    Roster,
    Round,
    Setup,
    Vector,
    stream,
)
from ipfl.methods.ipfl.appraisal import per_class_f1
from ipfl.methods.ipfl.audit import AuditedMarket
from ipfl.methods.ipfl.market_stats import market_stats
from ipfl.methods.ipfl.mixing import SHARPNESS
from ipfl.methods.ipfl.personalization import AUTO_EPOCHS, FOLDS, SHARES
from ipfl.methods.ipfl.preferences import preference_query
from ipfl.methods.ipfl.state import (
    MarketState,
    after_round,
    assign_bids,
    figures,
    merge_alike,
    report_warnings,
    take_preferences,
)
from ipfl.methods.ipfl.token_manager import TokenManager
from ipfl.methods.ipfl.updates import ask_training, updates_by_cluster
from ipfl.methods.ipfl.warm_start import initial_clusters
from ipfl.methods.steps import training_passes


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IPFL(AuditedMarket, Method[MarketState]):
    """Incentivized and personalized federated learning (Khan et al.)."""

    name: ClassVar[str] = "ipfl"
    summary: ClassVar[str] = "clients bid with tokens for cluster models and mix them (Khan et al., IP-FL)"

    def init(self, setup: Setup) -> MarketState:
        """K models with the same parameters, the same balance for all."""
        self.check(has_holdouts=bool(setup.holdouts))
        k = min(self.max_clusters, len(setup.clients)) if self.clusters == "auto" else self.clusters
        return MarketState.start(setup, k, self.opening_balance)

    def round(self, state: MarketState, roster: Roster, round: int) -> Phases[MarketState]:
        """Algorithm 1, one pass of its loop over rounds."""
        if round < self.market_opens:
            return (yield from self.train_as_one_model(state, roster, round))
        events: list[Event] = []
        state = yield from self.ask_preferences(state, roster, round)  # line 17: P_B ← ClientPreferences
        available = np.isin(state.ids, roster.clients)
        manager = TokenManager(state.bank, self.price)
        manager.issue_allowance(self.allowance)
        paid = manager.collect_bids(np.where(available[:, None], state.bid_ranks, -1))  # line 5
        selection = self.select(state, manager, paid, available, round)  # lines 11–13 and 19–22
        seats = manager.pay_seats(paid, selection)  # line 6, Eq. update_available_tokens
        # Lines 4 and 7: M_k to the clients of ζ_k, U_k back.
        replies = yield ask_training(state, seats, gradient=self.robust and self.contribution == "clients")
        updates, delivered = updates_by_cluster(state, seats, replies)
        manager.refund_seats(seats & ~delivered)
        models, psi, accuracy = yield from self.aggregate_and_appraise(state, updates)  # lines 8 and 18
        # Eqs. reimbursement_utility, reimbursement and reward_distribution
        share = self.settle(state, manager, delivered, psi, accuracy)
        after = after_round(state, manager, models, delivered, psi, accuracy, self.decay)
        after = report_warnings(after, selection.empty_seats, events)
        if self.clusters == "auto" and round - self.market_opens >= self.merge_after:
            after = merge_alike(after, round, events)
        market = Market(
            transfers=manager.rows(state.ids),
            bids=state.bids(available),
            contributions=after.contributions(delivered, psi),
            cluster_probe_accuracy=figures(accuracy),
            best_before=figures({k: state.best[k] for k in psi}),
            reimbursed_share=figures(share),
            economy=market_stats(after.bank.balances, self.price, selection.empty_seats),
        )
        return Round(after, state.seats(selection, delivered), tuple(events), market)

    def ask_preferences(
        self, state: MarketState, roster: Roster, round: int
    ) -> Generator[Ask, Replies, MarketState]:
        """Bids for this round: asked for every R rounds, kept in between; none in the first round."""
        since = round - self.market_opens
        if since == 0:
            return (yield from self.first_bids(state, roster)) if self.initial_clustering else state
        if (since - 1) % self.preference_every:
            return state
        if not self.incentive:  # NI: every client bids for one cluster at random
            rng = stream(state.seed, "bids", round)
            return assign_bids(state, rng.choice(state.clusters, len(state.ids)))
        rows = zip(roster.clients, state.rows(roster.clients).tolist(), strict=True)
        receipts = {client: state.receipts.get(row, ()) for client, row in rows}
        replies = yield preference_query(self.offer(state, 0), receipts)
        return take_preferences(state, replies, robust=self.robust)

    def first_bids(self, state: MarketState, roster: Roster) -> Generator[Ask, Replies, MarketState]:
        """Appendix Initial Clustering: each client bids for the cluster that K-Means puts it into."""
        clients, f1 = yield from per_class_f1(state, roster)
        rng = stream(state.seed, "initial clusters")
        clusters = initial_clusters(f1, clients, state.ids, len(state.models), self.varied_classes, rng)
        return assign_bids(state, clusters)

    def personalize_cost(self, state: MarketState) -> int:
        """Every cluster model once, every candidate for the mix, and the epochs of fine-tuning.

        On evidence, candidates are scored on two parts; all folds together train on FOLDS − 1 times the data.
        """
        k = len(state.clusters)
        candidates = {"tuned": len(SHARPNESS), "evidence": 2 * (k + len(SHARPNESS))}.get(self.mix, 0)
        auto = FOLDS * training_passes(AUTO_EPOCHS) + 2 * (1 + len(SHARES))
        return k + candidates + (auto if self.adapt == "auto" else training_passes(self.adapt))

    def models(self, state: MarketState) -> dict[str, Vector]:
        """The cluster models in use."""
        return state.named

    def preferences(self, state: MarketState) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        return state.preferred()
