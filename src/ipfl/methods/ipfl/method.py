"""IP-FL: clients score K cluster models on their own data, bid for them with tokens, train and mix them.

Khan et al., IP-FL: Incentivized and Personalized Federated Learning. `round` is Algorithm 1, whose lines the
comments name; its steps are in `server_steps`, Algorithm 2 in `client_side`.

Departures from the print, with the reasons in docs/reading.md:
- n_k of Eq. importance_weights is the cluster's total over the clients asked (relative weights); hits are
  counted on held-back `probe` points, by probability (`hits = "soft"`) or by count.
- The bidders of line 19 are sorted by a weighted draw (`order = "draw"`); a plain sort (`"top"`) trains the
  same few clients over and over. N_r is the number of explorers of the whole round.
- Eq. reimbursement returns the share U of the pool to those who paid; N_r in Eq. reward_distribution is
  the number of providers. Both keep the sum of all tokens as it is.
- The gradient of the Shapley approximation comes from the participants' `probe` by default.
- Beyond the paper: `warmup` rounds as one model, mixes `best` and `tuned`, `clusters = "auto"`, `robust`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ipfl.core import ClientId, Event, Fact, Market, Method, Phases, Roster, Round, Setup, Transfer, Vector
from ipfl.ledger.accounts import opening_transfers
from ipfl.methods.ipfl.market_stats import market_stats
from ipfl.methods.ipfl.preferences import SHARPNESS
from ipfl.methods.ipfl.replay import MarketReplay
from ipfl.methods.ipfl.server_steps import ServerSteps
from ipfl.methods.ipfl.state import (
    MarketState,
    after_round,
    fairness_report,
    figures,
    merge_alike,
    report_warnings,
)
from ipfl.methods.ipfl.token_manager import TokenManager
from ipfl.methods.ipfl.updates import ask_training, updates_by_cluster


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IPFL(ServerSteps, Method[MarketState]):
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

    def personalize_cost(self, state: MarketState) -> int:
        """Every cluster model once, and every candidate of a tuned mix."""
        return len(state.clusters) + (len(SHARPNESS) if self.mix == "tuned" else 0)

    def models(self, state: MarketState) -> dict[str, Vector]:
        """The cluster models in use."""
        return state.named

    def preferences(self, state: MarketState) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        return state.preferred()

    def report(self, state: MarketState) -> dict[str, Fact]:
        """The fairness summary."""
        return fairness_report(state, self.price)

    def rules(self) -> dict[str, Fact]:
        """Price and rates, for the audit of the ledger."""
        return {
            "price": self.price,
            "opening": self.opening_balance,
            "allowance": self.allowance,
            "eta": self.eta,
            "gamma": self.gamma,
            "clusters": self.max_clusters if self.clusters == "auto" else self.clusters,
            "incentive": self.incentive,
            "positive": self.robust,
        }

    def opening_transfers(self, state: MarketState) -> tuple[Transfer, ...]:
        """The same balance for everyone."""
        return opening_transfers(state.ids.tolist(), self.opening_balance)

    def roll_back(self, state: MarketState, market: Market) -> Market:
        """All bids go back, and no allowance is issued: clients that could pay only out of it did not bid."""
        manager = TokenManager(state.bank, self.price)
        if market.bids is None:
            return Market(())
        manager.return_bids(state.rank_table(market.bids))
        return Market(manager.rows(state.ids), market.bids)

    @classmethod
    def replay(cls, rules: Mapping[str, Fact], clients: Sequence[ClientId]) -> MarketReplay:
        """The market once more, from its record."""
        return MarketReplay(rules, clients)
