"""IP-FL: clients score K cluster models on their own data, bid for them with tokens, train and mix them.

Khan et al., IP-FL: Incentivized and Personalized Federated Learning. `round` is Algorithm 1 and
`on_preference` Algorithm 2; the lines named in comments are those of Algorithm 1. What the equations compute
lives in `ipfl.market`, each under its name; here is only who asks whom, and in which order.

Departures from the print, with the reasons in docs/reading.md:
- n_k of Eq. importance_weights is the cluster's total over the clients asked (relative weights); hits are
  counted on held-back `probe` points, by probability (`hits = "soft"`) or by count.
- The bidders of line 19 are sorted by a weighted draw (`order = "draw"`); a plain sort (`"top"`) trains the
  same few clients over and over.
- N_r is the number of explorers of the whole round, dealt out over the clusters.
- Eq. reimbursement returns the share U of the pool to those who paid; N_r in Eq. reward_distribution is
  the number of providers. Both keep the sum of all tokens as it is.
- The gradient of the Shapley approximation comes from the participants' `probe` by default.
- Beyond the paper: `warmup` rounds as one model, mixes `best` and `tuned`, `clusters = "auto"`, and a market
  that reckons with bad actors (`guarded`, see `ipfl.market.guard`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.client import Client, Part
from ipfl.core import Ask, ClientId, Fact, Method, Record, Replies, Roster, Round, Setup, Vector, stream
from ipfl.errors import InputError
from ipfl.market import Bools, health, tokens
from ipfl.market.appraisal import (
    Accuracies,
    Contributions,
    Updates,
    appraise,
    gradient_name,
    per_class_f1,
    typical_accuracy,
)
from ipfl.market.economy import (
    Books,
    Economy,
    after_round,
    answered,
    assigned,
    cluster_name,
    contribution_rows,
    fairness,
    merge_alike,
    open_economy,
    or_null,
    rows_of,
    seat_rows,
    watch,
)
from ipfl.market.ledger import ISSUER, NO_CLUSTER
from ipfl.market.preferences import SHARPNESS, bids, importance, learn_returns, mixing
from ipfl.market.scheduler import Selection, explorers, first_round, select
from ipfl.market.updates import collect, combine, deploy, judge
from ipfl.market.warmstart import confusion, initial_clusters
from ipfl.methods.steps import average, choose, left_out, random_seats, usable
from ipfl.params import mix
from ipfl.train import Score

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IPFL(Method[Economy]):
    """Incentivized and personalized federated learning (Khan et al.)."""

    name: ClassVar[str] = "ipfl"
    summary: ClassVar[str] = "clients bid with tokens for cluster models and mix them (Khan et al., IP-FL)"

    clusters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="K; auto: start with max_clusters and merge those that serve the same bidders"
    )
    max_clusters: Annotated[int, Field(ge=2)] = Field(6, description="K to start with under clusters = auto")
    merge_after: Annotated[int, Field(ge=1)] = Field(
        10, description="market rounds before the first merge under auto"
    )
    guarded: bool = Field(
        False,
        description="reckon with bad actors: temper claims, let others judge updates before they are used",
    )
    incentive: bool = Field(
        True, description="false: the ablation NI, random bids and no tokens change hands"
    )
    threshold: Share | None = Field(None, description="T_h on the importance weights; omitted: 1/K")
    hits: Literal["soft", "hard"] = Field(
        "soft", description="n_ik by probability of the true class, or by count"
    )
    preference_every: Annotated[int, Field(ge=1)] = Field(1, description="rounds between preference queries")
    preference_samples: Annotated[int, Field(ge=1)] = Field(
        128, description="points a client scores models on, at most"
    )
    feedback: Annotated[float, Field(ge=0)] = Field(
        0.1, description="weight of a client's own past returns in its order of preference"
    )
    mix: Literal["paper", "best", "tuned"] = Field(
        "tuned",
        description="how cluster models become a personalized one: by υ, the best, or what is best on goal",
    )
    n_p: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="N_p, seats per cluster by bid and contribution; omitted: what N_r leaves",
    )
    explore: Share = Field(
        0.2, description="N_r at first, as a share of the clients; falls with the unexplored share"
    )
    explore_floor: Share = Field(0.05, description="N_r never falls under this share of the clients")
    order: Literal["draw", "top"] = Field(
        "draw", description="bidders by weighted draw, or strictly from the top"
    )
    beta: float = Field(2.0, description="weight of the bid strength in the order of the bidders")
    beta_psi: float = Field(0.5, description="weight of the contribution in the order of the bidders")
    warmup: Annotated[int, Field(ge=0)] = Field(
        0, description="rounds in which all clusters are trained as one model"
    )
    initial_clustering: bool = Field(
        False, description="start from K-Means on per-class F1 (needs task.server_samples)"
    )
    pretrain: Annotated[int, Field(ge=1)] = Field(
        5, description="rounds as one model before initial clustering"
    )
    varied_classes: Annotated[int, Field(ge=1)] = Field(
        10, description="classes with the most varied F1 that K-Means looks at"
    )
    contribution: Literal["clients", "server", "exact"] = Field(
        "clients",
        description="gradient from participants or the server's holdout, or exact Shapley values",
    )
    normalised: bool = Field(True, description="normalised or unnormalised Shapley approximation")
    decay: Share = Field(0.5, description="weight of the past in remembered contributions")
    price: Annotated[int, Field(ge=1)] = Field(100, description="τ_p in tokens, the same for all")
    opening: Annotated[int, Field(ge=1)] | None = Field(
        None, description="opening balance; omitted: 100 prices"
    )
    allowance: Annotated[int, Field(ge=0)] = Field(0, description="tokens issued to every client each round")
    eta: Share = Field(0.5, description="η, largest share of a pool that is reimbursed")
    gamma: Share = Field(0.1, description="γ, relative improvement from which on nothing is reimbursed")

    def init(self, setup: Setup) -> Economy:
        """K models with the same parameters, the same balance for all."""
        k = min(self.max_clusters, len(setup.clients)) if self.clusters == "auto" else self.clusters
        tokens.check_rules(self.price, self._opening, self.eta, self.gamma)
        if not setup.holdouts and (self.initial_clustering or self.contribution == "server"):
            raise InputError('initial_clustering and contribution = "server" need task.server_samples > 0')
        if self.guarded and (not self.incentive or self.contribution == "exact"):
            raise InputError('guarded = true needs incentive = true and contribution "clients" or "server"')
        return open_economy(setup, k, self._opening)

    @property
    def opens(self) -> int:
        """Round in which the market opens; before it, all clusters are trained as one model."""
        return max(self.warmup, self.pretrain if self.initial_clustering else 0)

    def round(self, state: Economy, roster: Roster, round: int) -> Generator[Ask, Replies, Round[Economy]]:
        """Algorithm 1, one pass of its loop over rounds."""
        if round < self.opens:
            return (yield from self._as_one_model(state, roster, round))
        events: list[str] = []
        state = yield from self._preferences(state, roster, round, events)  # line 17: P_B ← ClientPreferences
        available = np.isin(state.ids, roster.clients)
        books = Books(state.bank, self.price)
        books.allowance(self.allowance)
        paid = books.auction(np.where(available[:, None], state.wanted, -1))  # line 5, Eq. consumer_cost
        selection = self._select(state, books, paid, available, round)  # lines 11–13 and 19–22
        seats = books.seat(paid, selection)  # line 6, Eq. update_available_tokens
        # Lines 4 and 7: M_k to the clients of ζ_k, U_k back.
        replies = yield deploy(state, seats, gradient=self.guarded and self.contribution == "clients")
        updates, delivered = collect(state, seats, replies, events)
        books.give_back(seats & ~delivered)
        models, psi, accuracy = yield from self._learn(state, updates)  # lines 8 and 18
        # Eqs. reimbursement_utility, reimbursement and reward_distribution
        share = self._settle(state, books, delivered, psi, accuracy)
        after = after_round(state, books, models, delivered, psi, accuracy, self.decay)
        after = watch(after, selection.short, events)
        if self.clusters == "auto" and round - self.opens >= self.merge_after:
            after = merge_alike(after, round, events)
        facts = {
            "wanted": rows_of(state.ids, state.wanted, (state.wanted >= 0) & available[:, None]),
            "seats": seat_rows(state.ids, selection, delivered),
            "contributions": contribution_rows(after, delivered, psi),
            "cluster_probe_accuracy": [[k, value] for k, value in accuracy.items()],
            "best_before": [[k, or_null(state.best[k])] for k in psi],
            "reimbursed_share": [[k, value] for k, value in share.items()],
            "economy": health.economy(after.bank.balances, self.price, selection.short),
            "transfers": books.entries(state.ids),
        }
        return Round(after, facts, tuple(events))

    def _as_one_model(
        self, state: Economy, roster: Roster, round: int
    ) -> Generator[Ask, Replies, Round[Economy]]:
        """A round before the market opens: all clusters are one model, trained by random clients."""
        chosen = choose(roster, state.per_round, stream(state.seed, "select", round))
        model = state.models[0]
        replies = yield Ask("train", {client: Record({cluster_name(0): model}) for client in chosen})
        kept = usable(replies, cluster_name(0), state.size)
        after = replace(
            state, models=(average(kept, cluster_name(0), model, state.rule),) * len(state.models)
        )
        facts = {"seats": random_seats(chosen, kept), "transfers": []}
        return Round(after, facts, left_out(chosen, kept))

    def _preferences(
        self, state: Economy, roster: Roster, round: int, events: list[str]
    ) -> Generator[Ask, Replies, Economy]:
        """Bids for this round: asked for every R rounds, kept in between; none in the first round."""
        since = round - self.opens
        if since == 0:
            return (yield from self._first_bids(state, roster)) if self.initial_clustering else state
        if (since - 1) % self.preference_every:
            return state
        if not self.incentive:  # NI: every client bids for one cluster at random
            rng = stream(state.seed, "bids", round)
            return assigned(state, rng.choice(state.clusters, len(state.ids)))
        models, facts = state.named(), self._query_facts(state)
        query = {}
        for client, row in zip(roster.clients, state.rows(roster.clients).tolist(), strict=True):
            told = state.receipts.get(row, ())
            receipts = {"seats": [k for k, _ in told], "net": [net for _, net in told]}
            query[client] = Record(models, facts | receipts)
        return answered(state, (yield Ask("preference", query)), events, guarded=self.guarded)

    def _first_bids(self, state: Economy, roster: Roster) -> Generator[Ask, Replies, Economy]:
        """Appendix Initial Clustering: each client bids for the cluster that K-Means puts it into."""
        clients, f1 = yield from per_class_f1(state, roster)
        rng = stream(state.seed, "initial clusters")
        clusters = initial_clusters(f1, clients, state.ids, len(state.models), self.varied_classes, rng)
        return assigned(state, clusters)

    def _select(self, state: Economy, books: Books, paid: Bools, available: Bools, round: int) -> Selection:
        """SelectClients(r): random in the first round, then N_p by bid and contribution and N_r at random."""
        rng = stream(state.seed, "select", round)
        live = state.clusters
        if not (state.wanted >= 0).any():
            able = available & (books.bank.balances >= self.price)
            return first_round(able, state.per_round, len(live), rng)
        unexplored = float((state.omega.sum(axis=1) == 0).mean())
        n_r = explorers(len(state.ids), unexplored, self.explore, self.explore_floor)
        if self.n_p is None:  # one seat per cluster at least, and no more trainings than other methods have
            n_r = min(n_r, max(state.per_round - len(live), 0))
        n_p = self.n_p or max(1, (state.per_round - n_r) // len(live))
        chosen = select(
            paid[:, live],
            state.strength[:, live],
            state.psi[:, live],
            available,
            books.bank.balances,
            price=self.price,
            n_p=n_p,
            n_r=n_r,
            rng=rng,
            order=self.order,
            beta=self.beta,
            beta_psi=self.beta_psi,
        )
        return chosen.spread(live, len(state.models))

    def _learn(
        self, state: Economy, updates: Updates
    ) -> Generator[Ask, Replies, tuple[tuple[Vector, ...], Contributions, Accuracies]]:
        """M_k = FedAvg(U_k), and the profiler: ψ_ki of each cluster's providers, Acc_kr on their own data."""
        if self.guarded:
            models, psi = yield from judge(state, updates, self.decay, server=self.contribution == "server")
            return models, psi, (yield from typical_accuracy(models, updates))
        models = combine(state, updates)
        if not self.incentive:
            return models, {}, {}
        psi, accuracy = yield from appraise(state, models, updates, self.contribution, self.normalised)
        return models, psi, accuracy

    def _settle(
        self,
        state: Economy,
        books: Books,
        delivered: Bools,
        psi: Contributions,
        accuracy: Accuracies,
    ) -> dict[int, float]:
        """The token manager after training: reimbursement by utility, the rest as rewards by rank."""
        if not self.incentive:
            books.give_back(delivered)
            return {}
        shares = {}
        for k, contributions in psi.items():
            providers = np.flatnonzero(delivered[:, k])
            shares[k] = tokens.utility(accuracy.get(k, np.nan), state.best[k], self.eta, self.gamma)
            omega = state.omega[providers, k] + 1
            books.settle(k, providers, contributions, omega, shares[k], positive=self.guarded)
        return shares

    def offer(self, state: Economy, client: ClientId) -> Record:
        """All cluster models, and how well they do on average: what Eq. importance_weights needs."""
        return Record(state.named(), self._query_facts(state))

    def _query_facts(self, state: Economy) -> dict[str, Fact]:
        return {"clusters": state.clusters, "means": state.means[state.clusters].tolist()}

    def scorings(self, state: Economy) -> int:
        """Every cluster model once, and every candidate of a tuned mix."""
        return len(state.clusters) + (len(SHARPNESS) if self.mix == "tuned" else 0)

    def models(self, state: Economy) -> dict[str, Vector]:
        """The cluster models in use."""
        return state.named()

    def preferences(self, state: Economy) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        return state.preferred()

    def rules(self) -> dict[str, Fact]:
        """Price and rates, for the audit of the ledger."""
        return {
            "price": self.price,
            "opening": self._opening,
            "allowance": self.allowance,
            "eta": self.eta,
            "gamma": self.gamma,
            "clusters": self.max_clusters if self.clusters == "auto" else self.clusters,
            "incentive": self.incentive,
            "positive": self.guarded,
        }

    def opening_transfers(self, state: Economy) -> list[list[Fact]]:
        """The same balance for everyone."""
        ids = [int(client) for client in state.ids]
        return [["open", ISSUER, client, self._opening, NO_CLUSTER, client] for client in ids]

    @property
    def _opening(self) -> int:
        return 100 * self.price if self.opening is None else self.opening

    def void(self, state: Economy, facts: Mapping[str, Fact]) -> dict[str, Fact]:
        """All bids go back, and no allowance is issued: whoever could pay only out of it did not bid."""
        books = Books(state.bank, self.price)
        kept = {key: facts[key] for key in ("wanted",) if key in facts}
        if kept:
            wanted = np.full_like(state.wanted, -1)
            for client, cluster, rank in facts["wanted"]:
                wanted[state.rows([client])[0], cluster] = rank
            books.call_off(wanted)
        return {**kept, **super().void(state, facts), "transfers": books.entries(state.ids)}

    def report(self, state: Economy) -> dict[str, Fact]:
        """The fairness summary."""
        return fairness(state, self.price)

    # The client's side. Each returns (reply, what to remember).

    def on_preference(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Algorithm 2, ClientPreferences: importance weights on `probe`, bids most wanted first."""
        clusters: list[int] = ask.facts["clusters"]
        hits, n = self._hits(ask, me, "probe")
        weights = importance(hits / max(n, 1), np.asarray(ask.facts["means"]))
        history = learn_returns(mine.facts, ask.facts["seats"], ask.facts["net"], self.price)
        known = dict(zip(history["clusters"], history["returns"], strict=True))
        returns = np.array([known.get(k, np.nan) for k in clusters])
        order = bids(weights, self.threshold, returns, self.feedback)
        reply = Record(
            {}, {"bids": [clusters[position] for position in order], "hits": hits.tolist(), "n": n}
        )
        return reply, Record({}, history)

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the model of every cluster the client has a seat in."""
        params = {k: me.train(model) for k, model in ask.params.items()}
        if ask.facts.get("gradient"):
            params |= {gradient_name(k): me.gradient(model, "probe") for k, model in ask.params.items()}
        return Record(params, {"n": len(me.data("train"))}), mine

    def on_appraise(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Accuracy of the aggregated models on `probe`, and the gradient of the loss there if asked for."""
        scores = {k: me.score(model, "probe") for k, model in ask.params.items()}
        wanted = ask.params.items() if ask.facts["gradient"] else ()
        facts = {k: [score.hits, float(score.n)] for k, score in scores.items()}
        return Record({k: me.gradient(model, "probe") for k, model in wanted}, facts), mine

    def on_loss(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Summed loss of each model on `probe`, for exact Shapley values."""
        scores = [me.score(model, "probe") for model in ask.params.values()]
        return Record({}, {"loss": [score.loss for score in scores], "n": scores[0].n}), mine

    def on_confusion(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """True positives, false positives and false negatives per class of each model (server's holdout)."""
        labels = me.data("probe").y
        guesses = {name: me.predict(model, "probe") for name, model in ask.params.items()}
        counts = {name: confusion(guess, labels, me.classes) for name, guess in guesses.items()}
        return Record({}, {name: count.tolist() for name, count in counts.items()}), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Eq. personalized_model: P_i = Σ_k υ_ik ω_k, with υ from `goal`; no training, no server state."""
        hits, n = self._hits(offer, me, "goal")
        weights = importance(hits / max(n, 1), np.asarray(offer.facts["means"]))
        models = [offer.params[cluster_name(k)] for k in offer.facts["clusters"]]

        def score(shares: NDArray[np.float64]) -> float:
            if shares.max() == 1:  # a single model: scored already
                return float(hits[shares.argmax()])
            return self._points(me.score(mix(models, shares), "goal", self.preference_samples))

        return mix(models, mixing(weights, self.mix, score))

    def _hits(self, ask: Record, me: Client, part: Part) -> tuple[NDArray[np.float64], int]:
        """n_ik for every cluster k, and the number of points."""
        models = [ask.params[cluster_name(k)] for k in ask.facts["clusters"]]
        scores = [me.score(model, part, self.preference_samples) for model in models]
        return np.array([self._points(score) for score in scores]), scores[0].n

    def _points(self, score: Score) -> float:
        return score.soft if self.hits == "soft" else score.hits
