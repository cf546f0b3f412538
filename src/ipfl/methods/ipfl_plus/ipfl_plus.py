"""IP-FL: clients score K cluster models on their own data, bid for them with tokens, train and mix them.

Khan et al., IP-FL: Incentivized and Personalized Federated Learning. `round` is Algorithm 1, whose lines the
comments name; its steps are in `preference_steps` and `server_steps`, Algorithm 2 in `client_side`.

Departures from the print, with the reasons in docs/reading.md:
- n_k of Eq. importance_weights is the cluster's total over the clients asked (relative weights); hits are
  counted on held-back `probe` points, by probability (`hits = "soft"`) or by count.
- The bidders of line 19 are sorted by a weighted draw (`order = "draw"`); a plain sort (`"top"`) trains the
  same few clients over and over. N_r is the number of explorers of the whole round.
- Everyone who was sent models pays for the clusters it bids for, and who paid gets the next models
  (`payers`, `access`); explorers train where they prefer to (`explore_in`).
- Eq. reimbursement returns the share U of the pool to consumers; N_r in Eq. reward_distribution is
  the number of providers. Both keep the sum of all tokens as it is.
- Contributions are agreement with the others' updates (`contribution`) instead of the Shapley approximation.
- Beyond the paper: `warmup` rounds as one model, cluster models that share (`share`), other mixes than the
  paper's, `clusters = "auto"`, `robust`.
`preset = "paper"` sets the printed rules.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from ipfl.core import ClientId, Event, Method, Phases, Roster, Round, Setup, Vector
from ipfl.errors import InputError
from ipfl.market.bids import make_bids
from ipfl.market.market_rows import Market
from ipfl.market.market_stats import market_stats
from ipfl.market.payments import MAX_TOKENS
from ipfl.market.token_manager import TokenManager
from ipfl.methods.ipfl_plus.ledger_rules import AuditedMarket
from ipfl.methods.ipfl_plus.market_state import (
    MarketState,
    figures,
    merge_alike,
    report_warnings,
)
from ipfl.methods.ipfl_plus.mixing import SHARPNESS
from ipfl.methods.ipfl_plus.server_steps import Outcome
from ipfl.methods.ipfl_plus.updates import ask_training, collect_updates


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class IPFL(AuditedMarket, Method[MarketState]):
    """Incentivized and personalized federated learning (Khan et al.)."""

    name: ClassVar[str] = "ipfl-plus"
    summary: ClassVar[str] = "clients bid with tokens for cluster models and mix them (Khan et al., IP-FL)"

    def init(self, setup: Setup) -> MarketState:
        """K models with the same parameters, the same balance for all."""
        opening = self.opening_balance(setup.config.rounds)
        self.check(
            opening,
            has_holdouts=bool(setup.task.holdouts),
            has_classes=setup.task.target == "classes",
            is_noisy=setup.config.privacy.is_on,
        )
        most = len(setup.clients) * (opening + setup.config.rounds * self.allowance)
        if most > MAX_TOKENS:  # now, and not in the round that would issue one too many
            raise InputError(f"method.allowance = {self.allowance}: {most} tokens in all, over {MAX_TOKENS}")
        k = min(self.max_clusters, len(setup.clients)) if self.clusters == "auto" else self.clusters
        return MarketState.start(setup, k, opening, self.release_round(setup.config.rounds))

    def round(self, state: MarketState, roster: Roster, round: int) -> Phases[MarketState]:
        """Algorithm 1, one pass of its loop over rounds."""
        if round < self.market_opens:
            return (yield from self.train_as_one_model(state, roster, round))
        events: list[Event] = []
        before, bidders = self.draw_bidders(state, roster, round)
        before = yield from self.ask_preferences(before, bidders, round)  # line 17: P_B ← ClientPreferences
        manager = TokenManager(state.bank, self.price)
        manager.issue_allowance(self.allowance if self.moves_tokens else 0)
        paid = manager.collect_bids(before.bid_ranks, bidders)  # line 5
        selection = self.select(before, manager, paid, bidders, round)  # lines 11–13 and 19–22
        selected, explorers = selection.seats(len(paid))
        served = self.served(before, round)
        payments = manager.charge(paid, selected, explorers, served)  # line 6
        seats = selected | explorers
        replies = yield ask_training(before, seats, round)  # lines 4 and 7: M_k to ζ_k, U_k back
        updates, delivered = collect_updates(before, seats, replies, self.guards)
        lost = self.refund_lost_seats(before, manager, seats & ~delivered, replies)
        appraised = yield from self.aggregate_and_appraise(before, updates)  # lines 8 and 18
        outcome = Outcome(seats, payments, delivered, lost, updates, appraised)
        remembered = self.remember_contributions(before, outcome)
        share = self.settle(before, manager, outcome)  # Eqs. reimbursement_utility to reward_distribution
        after = self.after_round(before, manager, outcome, remembered, round)
        after = report_warnings(after, selection.empty_seats, events)
        if self.clusters == "auto" and round - self.market_opens >= self.merge_after:
            after = merge_alike(after, round, events)
        market = Market(
            transfers=manager.rows(state.ids),
            bids=make_bids(before.ids, before.bid_ranks, before.score, bidders, served),
            contributions=after.contributions(delivered, appraised.psi),
            cluster_probe_accuracy=figures(appraised.accuracy),
            best_before=figures({k: before.best[k] for k in appraised.accuracy}),
            reimbursed_share=figures(share),
            economy=market_stats(after.bank.balances, self.price, selection.empty_seats),
        )
        return Round(after, before.seats(selection, delivered, lost), tuple(events), market)

    def personalize_cost(self, state: MarketState) -> int:
        """Every cluster model once, and every candidate for the mix.

        On evidence, candidates are scored on two parts.
        """
        k = len(state.clusters)
        candidates = {"tuned": len(SHARPNESS), "evidence": 2 * (k + len(SHARPNESS))}.get(self.mix, 0)
        return k + candidates

    def models(self, state: MarketState) -> dict[str, Vector]:
        """The cluster models in use."""
        return state.named

    def preferences(self, state: MarketState) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        return state.preferred()
