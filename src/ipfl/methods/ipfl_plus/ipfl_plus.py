"""IP-FL as we recommend it: clients score K cluster models, bid for them with tokens, train and mix them.

The market of Khan et al., IP-FL: Incentivized and Personalized Federated Learning, put together of parts.
Each is a file of its own that says how it departs from the print and why, with its own settings, and its own
record in the server's state; `rule = "paper"` switches it back to the paper's rule. `round` is Algorithm 1,
whose lines the comments name. `methods/ipfl.py` is the paper itself, with nothing added.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import (
    Ask,
    ClientId,
    Fact,
    Method,
    Phases,
    Record,
    Replies,
    Roster,
    Round,
    Setup,
    Vector,
    cluster_name,
    stream,
)
from ipfl.core.arrays import Bools
from ipfl.market.bank import TokenAccounts, TokenManager
from ipfl.market.bids import make_bids, preference_query
from ipfl.market.market_rows import Market
from ipfl.market.market_stats import bid_report, market_events, market_stats
from ipfl.market.seating import Seating, figures, make_contributions
from ipfl.market.token_market import TokenMarket
from ipfl.methods.ipfl_plus.contribution import Accuracies, ContributionRecord, Contributions, Psi
from ipfl.methods.ipfl_plus.guards import GuardRecord, Guards
from ipfl.methods.ipfl_plus.importance import Importance, Preferences
from ipfl.methods.ipfl_plus.mix import Mix
from ipfl.methods.ipfl_plus.payment import Access, Outcome, Payment
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.seats import Bidders, SeatRecord, Seats, first_round
from ipfl.methods.ipfl_plus.sharing import Sharing, SharingRecord
from ipfl.methods.ipfl_plus.state import MarketState
from ipfl.methods.ipfl_plus.updates import (
    WITH_PROBE,
    Clusters,
    Updates,
    ask_training,
    read_updates,
)
from ipfl.methods.shared.cluster_training import appraise, appraise_models


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class IPFLPlus(TokenMarket, Method[MarketState]):
    """Incentivized and personalized federated learning (Khan et al.), with all parts that help."""

    name: ClassVar[str] = "ipfl-plus"
    summary: ClassVar[str] = "clients bid with tokens for cluster models and mix them (Khan et al., IP-FL)"

    clusters: int = Field(default=2, ge=1, description="K")
    incentive: bool = Field(
        default=True, description="false: the ablation NI, random bids and no tokens change hands"
    )
    importance: Annotated[Importance, Field(description="how clients weigh the cluster models")] = (
        Importance()
    )
    seats: Annotated[Seats, Field(description="who trains in which cluster")] = Seats()
    payment: Annotated[Payment, Field(description="who pays, and who gets the models")] = Payment()
    contribution: Annotated[Contributions, Field(description="how contributions are measured")] = (
        Contributions()
    )
    guards: Annotated[Guards, Field(description="what is done about clients that cheat")] = Guards()
    sharing: Annotated[Sharing, Field(description="how far cluster models move together")] = Sharing()
    mix: Annotated[Mix, Field(description="how cluster models become a personalized one")] = Mix()

    def init(self, setup: Setup) -> MarketState:
        """K models with the same parameters, the same balance for all; no bids, nothing known of anybody."""
        run = RunFacts.of(setup, holds_back=self.importance.holds_back)
        n, k = len(run.ids), self.clusters
        held = None if setup.make_client_models is None else setup.client_model_store()
        return MarketState(
            run=run,
            clusters=Clusters.start(setup.params, k),
            preferences=Preferences.start(n, k),
            seats=SeatRecord.start(n, k),
            accounts=TokenAccounts.of_run(setup, k, self.price, self.payment.opening),
            access=Access.start(n, k, held),
            contributions=ContributionRecord.start(n, k),
            guards=GuardRecord.start(n, k),
            sharing=SharingRecord.start(k),
        )

    def round(self, state: MarketState, roster: Roster, round: int) -> Phases[MarketState]:
        """Algorithm 1, one pass of its loop over rounds."""
        run, clusters, payment = state.run, state.clusters, self.payments
        known, bidders = yield from self.ask_preferences(state, roster, round)  # line 16: P_B
        manager = TokenManager(state.accounts, self.price)
        paid = manager.collect_bids(known.ranks, bidders)  # line 5
        seats, empty = self.select(state, known, manager, paid, bidders, round)  # lines 10–13 and 18–21
        served = payment.served(known, round)
        payments = manager.charge(paid, seats, served)  # line 6

        replies = yield ask_training(run, clusters, seats.all, round)  # lines 4 and 7: M_k to ζ_k, U_k back
        collected, delivered = read_updates(run, clusters, seats.all, replies)
        excused = payment.refund_lost_seats(manager, run, seats.all & ~delivered, replies)
        seats = replace(seats, delivered=delivered, excused=excused)

        screened, guards = self.guards.screen(collected, state.guards)
        fair = {k: found.only(found.is_fair) for k, found in screened.items()}
        psi = self.compare(fair, run)
        used, guards = self.guards.drop_noise(fair, psi, guards, run, state.seats.omega)
        clip = self.guards.uses("clip")
        moved, sharing = self.sharing.move(clusters, state.sharing, used, run, clip=clip)  # line 8
        psi, accuracy = yield from self.appraise(run, moved, seats, fair, psi)  # line 17: Algorithm 3

        outcome = Outcome(seats, payments, spread(psi, screened), accuracy)
        share = payment.settle(manager, state.access, known, state.seats, outcome)  # reimbursement, rewards
        had = state.seats.after(seats)
        collapsed, events = market_events(known.ranks, empty, state.collapsed)
        after = MarketState(
            run=run,
            clusters=moved,
            preferences=known.with_samples(screened),
            seats=had,
            accounts=state.accounts.after(manager, seats.all),
            access=payment.after_round(state.access, known, outcome, clusters, run, round),
            contributions=state.contributions.after(outcome.psi, seats, had.omega),
            guards=guards,
            sharing=sharing,
            collapsed=collapsed,
        )
        market = Market(
            transfers=tuple(manager.transfers),
            bids=make_bids(run.ids, known.ranks, known.score, bidders, served),
            contributions=make_contributions(run.ids, had.omega, delivered, outcome.psi),
            cluster_probe_accuracy=figures(accuracy),
            best_before=figures({k: state.access.best[k] for k in accuracy}),
            reimbursed_share=figures(share),
            economy=market_stats(manager.balances, self.price, empty),
        )
        return Round(after, seats.rows(run.ids), events, market)

    @property
    def price(self) -> int:  # type: ignore[override]
        """τ_p in tokens."""
        return self.payment.price

    @property
    def payments(self) -> Payment:
        """The rules of payment in force: without the incentive no tokens change hands."""
        return self.payment if self.incentive else replace(self.payment, rule="none")

    def ask_preferences(
        self, state: MarketState, roster: Roster, round: int
    ) -> Generator[Ask, Replies, tuple[Preferences, Bools]]:
        """P_B of the clients that may bid in this round, and who they are; no bids in the first."""
        run, known = state.run, state.preferences.unscored()
        if not self.incentive:  # NI: every client bids for one cluster at random
            rng = stream(run.seed, "bids", round)
            chosen = known.with_one_bid_each(rng.choice(state.clusters.numbers, len(run.ids)))
            return known if round == 0 else chosen, run.among(roster.clients)
        known, bidders = self.importance.draw_bidders(known, run, roster, round)
        rows = np.flatnonzero(bidders)
        if round == 0 or not len(rows):
            return known, bidders
        entitled, offer = self.payments.entitled(state.access, known), self.current_offer(state)
        points = self.importance.points_to_score(known, run)
        offers = {}
        for row in rows.tolist():
            facts = {**offer.facts, "points": points, **self.account(state, row)}
            offers[int(run.ids[row])] = Record(offer.params if entitled[row] else {}, facts)
        replies = yield preference_query(offers, self.clusters, lambda sent: len(sent.params))
        limit_claims = self.guards.uses("claims")
        answered = self.importance.take_answers(known, run, replies, rows, round, limit_claims=limit_claims)
        return answered, bidders

    def account(self, state: MarketState, row: int) -> dict[str, Fact]:
        """The account of one client, as it is told with every query."""
        accounts, importance = state.accounts, state.preferences.importance
        return {
            "balance": int(accounts.balances[row]),
            "price": self.price,
            "seats": state.seats.had[row].tolist(),
            "net": accounts.net[row].tolist(),
            "importance": np.nan_to_num(importance[row]).tolist(),
        }

    def select(
        self,
        state: MarketState,
        known: Preferences,
        manager: TokenManager,
        paid: Bools,
        available: Bools,
        round: int,
    ) -> tuple[Seating, int]:
        """SelectClients(r): random in the first round, then N_p by bid and contribution and N_r at random.

        Returns:
            The seats, and how many stayed empty.
        """
        run, balances, budget = state.run, manager.balances, state.run.per_round
        rng = stream(run.seed, "select", round)
        if not (known.ranks >= 0).any() and not (known.asked >= 0).any():
            seats = first_round(available & (balances >= self.price), budget, self.clusters, rng)
        else:
            psi, budget = state.contributions.psi, self.payments.count_seats(budget, paid, available)
            bidders = Bidders(paid, known.ranks, known.importance, psi, available, balances)
            seats = self.seats.choose(bidders, state.seats, budget, self.price, round, rng)
        return seats, budget - int(seats.all.sum())

    def compare(self, fair: Updates, run: RunFacts) -> Psi:
        """ψ_ki as far as it follows from the updates; without the incentive nobody needs it."""
        if not self.incentive:
            return {}
        return self.contribution.compare(fair, clip=self.guards.uses("clip"), is_noisy=run.is_noisy)

    def appraise(
        self, run: RunFacts, clusters: Clusters, seats: Seating, fair: Updates, psi: Psi
    ) -> Generator[Ask, Replies, tuple[Psi, Accuracies]]:
        """ψ_ki by the gradient, and Acc_kr, where a rule needs them."""
        by_gradient = self.incentive and self.contribution.rule == "paper"
        if not by_gradient and self.payments.rule != "paper":
            return psi, {}
        accuracy, gradients = yield from appraise_models(run.ids, clusters.models, seats.delivered)
        return self.contribution.estimate(clusters.models, fair, gradients) if by_gradient else psi, accuracy

    def current_offer(self, state: MarketState) -> Record:
        """All cluster models of this moment, and how well they do on average."""
        means = state.preferences.means.tolist()
        return Record(state.clusters.named, {"clusters": state.clusters.numbers, "means": means})

    def offer(self, state: MarketState, client: ClientId) -> Record:
        """What Eq. importance_weights needs; a client that stopped paying keeps the models it last bought."""
        row = int(state.run.rows([client])[0])
        is_known = row < len(state.run.ids) and state.run.ids[row] == client
        held = state.access.held_offer(row, client) if is_known else None
        return self.current_offer(state) if held is None else held

    def on_preference(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Algorithm 2, ClientPreferences."""
        return self.importance.bid(ask, me, self.price), mine

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the model of every cluster the client has a seat in.

        Later in a run also on the points that it scores models on, if `train.use_probe` says so: other
        methods have them from the beginning.
        """
        points, everything = me.data("train"), None
        if ask.facts.get(WITH_PROBE) and me.settings.use_probe:
            points = everything = points.joined(me.data("probe"))
        params = {k: me.train(model, on=everything) for k, model in ask.params.items()}
        return Record(params, {"n": len(points)}), mine

    def on_appraise(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Accuracy of the aggregated models on the client's points, and gradients there if asked for."""
        return appraise(ask, me), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Eq. personalized_model: P_i = Σ_k υ_ik ω_k, with υ from `goal`."""
        models, limit = (
            [offer.params[cluster_name(k)] for k in offer.facts["clusters"]],
            self.importance.samples,
        )
        hits, n = self.importance.count_hits(models, me, ("goal",), limit)
        importance = self.importance.weigh(hits / max(n, 1), np.asarray(offer.facts["means"]))
        return self.mix.personalize(models, importance, me, limit)

    def models(self, state: MarketState) -> dict[str, Vector]:
        """The cluster models."""
        return state.clusters.named

    def preferences(self, state: MarketState) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        favourites = state.preferences.favourites
        bid = favourites >= 0
        return dict(zip(state.run.ids[bid].tolist(), favourites[bid].tolist(), strict=True))

    def report(self, state: MarketState) -> dict[str, Fact]:
        """Who has what, and whether rewards follow contributions (section Fairness)."""
        bids = bid_report(state.preferences.ranks, state.collapsed)
        wealth = state.accounts.report(self.price, state.contributions.psi)
        return {**bids, "shared": state.sharing.share, **wealth}

    def rules(self, state: MarketState) -> dict[str, Fact]:
        """Price and rates, for the audit of the ledger."""
        payment = self.payments
        about = {"price": self.price, "clusters": self.clusters, "incentive": payment.moves_tokens}
        return {**about, **asdict(payment.settlement_rule), **state.accounts.rules()}


def spread(psi: Psi, updates: Updates) -> Psi:
    """ψ_ki of all providers: 0 where an update does not count."""
    found = {}
    for k, values in psi.items():
        found[k] = np.zeros(len(updates[k].clients))
        found[k][updates[k].is_fair] = values
    return found
