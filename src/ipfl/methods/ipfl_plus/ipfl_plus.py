"""IP-FL as we recommend it: clients score K cluster models, bid for them with tokens, train and mix them.

The market of Khan et al., IP-FL: Incentivized and Personalized Federated Learning, put together of parts.
Each is a file of its own that says how it departs from the print and why, with its own settings, and its own
record in the server's state; `rule = "paper"` switches it back to the paper's rule. `round` is Algorithm 1,
whose lines the comments name. `methods/ipfl.py` is the paper itself, with nothing added.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

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
from ipfl.market import bids
from ipfl.market.bank import opening_transfers
from ipfl.market.market_arrays import Bools
from ipfl.market.market_rows import Market, Transfer
from ipfl.market.market_stats import market_stats
from ipfl.market.token_manager import TokenManager
from ipfl.methods.ipfl_plus import telemetry
from ipfl.methods.ipfl_plus.contribution import Accuracies, Contribution, Psi, measure_accuracy
from ipfl.methods.ipfl_plus.guards import Guards
from ipfl.methods.ipfl_plus.importance import Importance, Preferences
from ipfl.methods.ipfl_plus.mix import Mix
from ipfl.methods.ipfl_plus.payment import Outcome, Payment
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.seats import Bidders, Seats, Selection, first_round
from ipfl.methods.ipfl_plus.sharing import Sharing
from ipfl.methods.ipfl_plus.state import MarketState
from ipfl.methods.ipfl_plus.updates import (
    WITH_PROBE,
    ClusterModels,
    Updates,
    ask_training,
    collect_updates,
)

if TYPE_CHECKING:
    from ipfl.market.replay import MarketReplay


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class IPFLPlus(Method[MarketState]):
    """Incentivized and personalized federated learning (Khan et al.), with all parts that help."""

    name: ClassVar[str] = "ipfl-plus"
    summary: ClassVar[str] = "clients bid with tokens for cluster models and mix them (Khan et al., IP-FL)"

    clusters: Annotated[int, Field(ge=1, description="K")] = 2
    incentive: Annotated[
        bool, Field(description="false: the ablation NI, random bids and no tokens change hands")
    ] = True
    importance: Annotated[Importance, Field(description="how clients weigh the cluster models")] = (
        Importance()
    )
    seats: Annotated[Seats, Field(description="who trains in which cluster")] = Seats()
    payment: Annotated[Payment, Field(description="who pays, and who gets the models")] = Payment()
    contribution: Annotated[Contribution, Field(description="how contributions are measured")] = (
        Contribution()
    )
    guards: Annotated[Guards, Field(description="what is done about clients that cheat")] = Guards()
    sharing: Annotated[Sharing, Field(description="how far cluster models move together")] = Sharing()
    mix: Annotated[Mix, Field(description="how cluster models become a personalized one")] = Mix()

    def init(self, setup: Setup) -> MarketState:
        """K models with the same parameters, the same balance for all."""
        run = RunFacts.of(setup, holds_back=self.importance.holds_back)
        accounts = self.payment.open_accounts(setup, self.clusters)
        return MarketState.start(run, ClusterModels.start(setup.params, self.clusters), accounts)

    def round(self, state: MarketState, roster: Roster, round: int) -> Phases[MarketState]:
        """Algorithm 1, one pass of its loop over rounds."""
        run, clusters, accounts, payment = state.run, state.clusters, state.accounts, self.payments
        known, bidders = yield from self.ask_preferences(state, roster, round)  # line 17: P_B
        manager = TokenManager(accounts.bank, payment.price)
        paid = manager.collect_bids(known.ranks, bidders)  # line 5
        selection = self.select(state, known, manager, paid, bidders, round)  # lines 11–13 and 19–22
        selected, explorers = selection.tables(len(run.ids))
        served, seats = payment.served(known, round), selected | explorers
        payments = manager.charge(paid, selected, explorers, served)  # line 6

        replies = yield ask_training(run, clusters, seats, round)  # lines 4 and 7: M_k to ζ_k, U_k back
        collected, delivered = collect_updates(run, clusters, seats, replies)
        lost = payment.refund_lost_seats(manager, run, seats & ~delivered, replies)

        screened, guards = self.guards.screen(collected, state.guards)
        fair = {k: found.only(found.is_fair) for k, found in screened.items()}
        psi = self.compare(fair, run)
        used, guards = self.guards.drop_noise(fair, psi, guards, run, state.seats.omega)
        clip = self.guards.uses("clip")
        moved, sharing = self.sharing.move(clusters, state.sharing, used, run, clip=clip)  # line 8
        psi, accuracy = yield from self.appraise(moved.models, screened, fair, psi)  # line 18: Algorithm 3

        outcome = Outcome(seats, payments, delivered, lost, psi, accuracy)
        share = payment.settle(manager, accounts, known, state.seats, outcome)  # reimbursement and rewards
        seats_after = state.seats.after(seats, delivered)
        missing = seats & ~delivered & ~lost
        after = MarketState(
            run=run,
            clusters=moved,
            preferences=known.with_samples(screened),
            seats=seats_after,
            accounts=payment.after_round(accounts, manager, known, outcome, clusters, run, round),
            contributions=state.contributions.after(psi, delivered, missing, seats_after.omega),
            guards=guards,
            sharing=sharing,
            collapsed=telemetry.is_collapsed(known),
        )
        market = Market(
            transfers=manager.rows(run.ids),
            bids=bids.make_bids(run.ids, known.ranks, known.score, bidders, served),
            contributions=telemetry.contribution_rows(run, delivered, psi, seats_after),
            cluster_probe_accuracy=telemetry.figures(accuracy),
            best_before=telemetry.figures({k: accounts.best[k] for k in accuracy}),
            reimbursed_share=telemetry.figures(share),
            economy=market_stats(after.accounts.bank.balances, payment.price, selection.empty_seats),
        )
        rows = telemetry.seat_rows(run, selection, delivered, lost)
        return Round(after, rows, telemetry.warnings(state, after, selection.empty_seats), market)

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
        entitled, ids = self.payments.entitled(state.accounts, known), run.ids[rows].tolist()
        told = [
            state.accounts.told(row, state.seats, known) | {"price": self.payment.price}
            for row in rows.tolist()
        ]
        replies = yield self.importance.query(
            self.current_offer(state),
            self.importance.points_to_score(known, run),
            dict(zip(ids, entitled[rows].tolist(), strict=True)),
            dict(zip(ids, told, strict=True)),
        )
        limit_claims = self.guards.uses("claims")
        answered = self.importance.take_answers(known, run, replies, rows, round, limit_claims=limit_claims)
        return answered, bidders

    def select(
        self,
        state: MarketState,
        known: Preferences,
        manager: TokenManager,
        paid: Bools,
        available: Bools,
        round: int,
    ) -> Selection:
        """SelectClients(r): random in the first round, then N_p by bid and contribution and N_r at random."""
        run, price, balances = state.run, self.payment.price, manager.bank.balances
        rng = stream(run.seed, "select", round)
        if not (known.ranks >= 0).any() and not (known.asked >= 0).any():
            return first_round(available & (balances >= price), run.per_round, paid.shape[1], rng)
        bidders = Bidders(paid, known.ranks, known.importance, state.contributions.psi, available, balances)
        budget = self.payments.count_seats(run.per_round, paid, available)
        return self.seats.choose(bidders, state.seats, budget, price, round, rng)

    def compare(self, fair: Updates, run: RunFacts) -> Psi:
        """ψ_ki as far as it follows from the updates; without the incentive nobody needs it."""
        if not self.incentive:
            return {}
        return self.contribution.compare(fair, clip=self.guards.uses("clip"), is_noisy=run.is_noisy)

    def appraise(
        self, models: Sequence[Vector], updates: Updates, fair: Updates, psi: Psi
    ) -> Generator[Ask, Replies, tuple[Psi, Accuracies]]:
        """ψ_ki of all providers, 0 where an update does not count, and Acc_kr where a rule needs it."""
        accuracy: Accuracies = {}
        if self.incentive and self.contribution.rule == "paper":
            psi, accuracy = yield from self.contribution.ask_gradients(models, fair)
        elif self.payments.rule == "paper":
            accuracy = yield from measure_accuracy(models, fair)
        spread = {}
        for k, values in psi.items():
            spread[k] = np.zeros(len(updates[k].clients))
            spread[k][updates[k].is_fair] = values
        return spread, accuracy

    def current_offer(self, state: MarketState) -> Record:
        """All cluster models of this moment, and how well they do on average."""
        means = state.preferences.means.tolist()
        return Record(state.clusters.named, {"clusters": state.clusters.numbers, "means": means})

    def offer(self, state: MarketState, client: ClientId) -> Record:
        """What Eq. importance_weights needs; a client that stopped paying keeps the models it last bought."""
        row = int(state.run.rows([client])[0])
        is_known = row < len(state.run.ids) and state.run.ids[row] == client
        held = state.accounts.held_offer(row, client) if is_known else None
        return self.current_offer(state) if held is None else held

    def on_preference(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Algorithm 2, ClientPreferences."""
        return self.importance.bid(ask, me, self.payment.price), mine

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
        """Accuracy of the aggregated models on `probe`, and the gradient of the loss there if asked for."""
        scores = {k: me.score(model, "probe") for k, model in ask.params.items()}
        wanted = ask.params.items() if ask.facts["gradient"] else ()
        facts = {k: [score.hits, float(score.n)] for k, score in scores.items()}
        return Record({k: me.gradient(model, "probe") for k, model in wanted}, facts), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Eq. personalized_model: P_i = Σ_k υ_ik ω_k, with υ from `goal`."""
        models, limit = (
            [offer.params[cluster_name(k)] for k in offer.facts["clusters"]],
            self.importance.samples,
        )
        hits, n = self.importance.count_hits(models, me, ("goal",), limit)
        importance = self.importance.weigh(hits / max(n, 1), np.asarray(offer.facts["means"]))
        return self.mix.personalize(models, importance, me, limit)

    def personalize_cost(self, state: MarketState) -> int:
        """Every cluster model once, and every candidate for the mix."""
        return self.clusters + self.mix.cost(self.clusters)

    def models(self, state: MarketState) -> dict[str, Vector]:
        """The cluster models."""
        return state.clusters.named

    def preferences(self, state: MarketState) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        return state.preferred()

    def report(self, state: MarketState) -> dict[str, Fact]:
        """The fairness summary."""
        return telemetry.fairness_report(state, self.payment.price)

    def rules(self, state: MarketState) -> dict[str, Fact]:
        """Price and rates, for the audit of the ledger."""
        rule, accounts = self.payments.settlement_rule, state.accounts
        return {
            "price": self.payment.price,
            "opening": accounts.opening,
            "eta": rule.eta,
            "gamma": rule.gamma,
            "clusters": self.clusters,
            "incentive": self.payments.moves_tokens,
            "positive": rule.rewarded == "positive",
            "reimburse": rule.reimburse,
            "forfeit": True,
            "subsidy": rule.subsidy,
            **(
                {"brought": {str(c): b for c, b in sorted(accounts.brought.items())}}
                if accounts.brought
                else {}
            ),
        }

    def opening_transfers(self, state: MarketState) -> tuple[Transfer, ...]:
        """The same balance for everyone who brings none along from an earlier run."""
        return opening_transfers(state.run.ids.tolist(), state.accounts.opening, state.accounts.brought)

    def roll_back(self, state: MarketState, market: Market) -> Market:
        """All bids go back."""
        return bids.roll_back(state.accounts.bank, self.payment.price, state.run.ids, market)

    @classmethod
    def replay(cls, rules: Mapping[str, Fact], clients: Sequence[ClientId]) -> MarketReplay:
        """The market once more, from its record."""
        # Not at the top: with it comes the database, which clients do not need.
        from ipfl.market.replay import MarketReplay

        return MarketReplay(rules, clients)
