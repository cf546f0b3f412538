"""IP-FL as it is printed: Khan et al., IP-FL: Incentivized and Personalized Federated Learning.

The paper's three algorithms are three functions here, in the printed order, with the printed line numbers in
comments (they count from 1 in each algorithm; those in the paper's text run on, from its inputs):

| paper | here |
|---|---|
| Algorithm 1, server | `IPFL.round`, and its function SelectClients: `IPFL.select_clients` |
| Algorithm 2, ClientPreferences | `IPFL.client_preferences` |
| Algorithm 3, Shapley approximation of the appendix | `estimate_shapley` |
| Eqs. importance_weights, personalized_model | `importance_weights`, `IPFL.personalize` |
| Eqs. consumer_cost to reward_distribution | `ipfl.market.bank`, shared with `ipfl-plus` |
| appendix "Initial Clustering" | `ipfl.methods.shared.initial_clustering`, shared with `ipfl-plus` |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client, Part
from ipfl.config.sections import AggregateConfig
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
    server_faults,
    stream,
)
from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.core.vectors import mix
from ipfl.errors import InputError
from ipfl.market.bank import TokenAccounts, TokenManager
from ipfl.market.bids import NO_BID, make_bids, preference_query, take_bids
from ipfl.market.market_rows import Market
from ipfl.market.market_stats import bid_report, market_events, market_stats
from ipfl.market.payments import affordable_bids
from ipfl.market.seating import Seating, count_explorers, figures, make_contributions
from ipfl.market.settlement import Served, SettlementRule, settle
from ipfl.market.token_market import TokenMarket
from ipfl.methods.shared.cluster_models import read_models
from ipfl.methods.shared.cluster_training import (
    TRAINED,
    ModelUpdates,
    appraise,
    appraise_models,
    ask_seats,
    collect_updates,
)
from ipfl.methods.shared.initial_clustering import (
    count_confusion,
    initial_clusters,
    per_class_f1,
    train_one_model,
)
from ipfl.methods.shared.steps import loss_table

ROUNDING = 1e-6
"""Importance that misses T_h by no more passes: K times 1/K, as computed, all reach 1/K."""


@dataclasses.dataclass(frozen=True)
class IPFLState:
    """What the server knows between rounds; a row per client in ascending id, a column per cluster.

    Attributes:
        models: M_k.
        accounts: The clients' tokens.
        bids: (N, K) P_B as last answered: rank of each bid, 0 = most wanted, `NO_BID`.
        bidding: (N,) whose bids hold in this round: who answered.
        psi: (N, K) ψ_ki of the last round that the client trained in; NaN: in none, or not known.
        omega: (N, K) participation Ω_ki: rounds trained in the cluster.
        best: (K,) Acc_kmax over earlier rounds, NaN = none yet.
        totals: (K,) Σ_i n_ik over the clients that answered last; 0 before, and where nobody says n_ik.
        holdouts: Under which ids the server can be asked about its own samples.
        rule: How a cluster's updates become its model.
    """

    models: tuple[Vector, ...]
    accounts: TokenAccounts
    bids: NDArray[np.int16]
    bidding: Bools
    psi: NDArray[np.float64]
    omega: NDArray[np.int64]
    best: NDArray[np.float64]
    totals: NDArray[np.float64]
    per_round: int
    seed: int
    holdouts: tuple[ClientId, ...]
    rule: AggregateConfig
    collapsed: bool = False

    @property
    def named(self) -> dict[str, Vector]:
        """The models as they travel: `cluster_0`, `cluster_1` and so on."""
        return {cluster_name(k): model for k, model in enumerate(self.models)}


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class IPFL(TokenMarket, Method[IPFLState]):
    """Incentivized and personalized federated learning, to the letter of the paper (Khan et al.).

    What the print leaves open or misprints, and how it is read:

    - Eq. importance_weights divides by "n_k". The proof of Proposition 1 calls 1 "perfect prediction accuracy
      for the client's data", and FedSoft's u_kc = n_kc/n_k, whose formula it is, has the client where we have
      i: so υ_ik = n_ik/n_i (`importance = "own"`). `"fedsoft"`: n_ik are the points on which model k has the
      least loss. `"relative"`: n_k is taken at its word, Σ_i n_ik over the clients of the last query (n_i in
      the first); only then do clients say n_ik. Points are those of D_i that the client trains on: nothing is
      held back.
    - Algorithm 2 compares υ_ik, row-normalised, with T_h by ≥: with K equal weights and T_h = 1/K, > would
      leave no cluster. The best one is preferred always. Individual rationality ("clients can also decide …
      based on budget, past rewards, and importance weights"): a client bids for a preferred cluster that has
      not cost it more tokens than it brought so far, and for its best one.
    - "r > 1" in SelectClients is r ≥ 1: round 1 would select nobody.
    - sort(P_B, ψ) is by ψ alone, descending. It is Timsort, which is stable: equal ψ stay in the order in
      which bids arrive, here a random one. Who never trained has contributed nothing: ψ = 0, the Shapley
      value of a player outside of the coalition. ψ of a client that did not train again is its last.
    - N_p + N_r is the budget of all methods, `train.per_round`, dealt over the clusters, with one seat by
      performance in each where it suffices; N_r per cluster would exceed it. A client may have a seat in
      several clusters. Seats for which too few bid stay empty. Explored is who has trained.
    - ψ (line 17) is measured when updates are there, as the rewards of the same round go by it. Its test data
      are the participants' own points, or the server's holdout on which the model is most accurate
      (`holdout`).
    - Who is selected pays τ_p, explorers too; all other bids go back. The pool of line 6 is that of the
      seats, so it stays as it is if no update comes back. Only a training lost at the server is refunded, and
      a pool that nobody can earn.
    - Eq. reimbursement, a deduction from everyone, would destroy tokens. The text says what is meant: the
      share U of the pool goes back to consumers, those who paid; what providers share shrinks by as much.
      Acc_kr is the accuracy on the participants' own points, the first round owes nothing.
    - N_r in Eq. reward_distribution is the number of providers: only then does the pool come out even. Equal
      ψ are ranked by Ω, then by id. Tokens are whole numbers; all open with a price for every round.
    - Eq. personalized_model is normalised, Σ_k υ_ik = 1, or P_i would not be a model of the same scale. υ is
      scored on `goal`, what the client wants to be good at. No training; line 7 of Algorithm 2 is done when
      a client predicts. All K models start from the same parameters: others could not be averaged.
    - NI (`incentive = false`): every bid is for one cluster at random, payments go back, ψ is not measured.
    - Initial clustering: K-Means gives the bids of the first round after `pretrain` rounds as one model.
    """

    name: ClassVar[str] = "ipfl"
    summary: ClassVar[str] = "IP-FL as printed: bids, seats by contribution, tokens (Khan et al.)"
    needs_probe: ClassVar[bool] = False

    clusters: int = Field(2, ge=1, description="K, number of cluster models")
    importance: Literal["own", "fedsoft", "relative"] = Field(
        "own",
        description="υ: share of a client's points that a model gets right; or on which it has the least "
        "loss; or points that it gets right, relative to all clients'",
    )
    threshold: float | None = Field(None, ge=0, le=1, description="T_h on row-normalised υ; omitted: 1/K")
    incentive: bool = Field(True, description="false: the ablation NI, random bids and no payments")
    initial_clustering: bool = Field(False, description="start from K-Means on per-class F1 at the server")
    pretrain: int = Field(5, ge=1, description="rounds as one model before initial clustering")
    explore: float = Field(0.2, ge=0, le=1, description="N_r at first, as a share of all clients")
    explore_floor: float = Field(0.05, ge=0, le=1, description="least N_r, as a share of all clients")
    holdout: Literal["participants", "server"] = Field(
        "participants", description="whose points the gradient of the Shapley approximation is taken on"
    )
    normalised: bool = Field(True, description="normalised or unnormalised Shapley approximation")
    price: int = Field(100, ge=1, description="τ_p in tokens, the same for all")
    opening: int | None = Field(None, ge=1, description="opening balance; omitted: a price for every round")
    eta: float = Field(0.5, ge=0, le=1, description="η, largest share of a pool that is reimbursed")
    gamma: float = Field(0.1, ge=0, le=1, description="γ, relative gain from which on nothing is reimbursed")

    def init(self, setup: Setup) -> IPFLState:
        """K models with the same parameters, the same balance for all, no bids."""
        if not setup.task.holdouts and (self.initial_clustering or self.holdout == "server"):
            raise InputError('initial_clustering and holdout = "server" need task.server_samples > 0')
        if self.initial_clustering and setup.task.target != "classes":
            raise InputError(
                "method.initial_clustering compares clients by class: it needs classes to predict"
            )
        table = (len(setup.clients), self.clusters)
        return IPFLState(
            models=(setup.params,) * self.clusters,
            accounts=TokenAccounts.of_run(setup, self.clusters, self.price, self.opening),
            bids=np.full(table, NO_BID, np.int16),
            bidding=np.zeros(len(setup.clients), bool),
            psi=np.full(table, np.nan),
            omega=np.zeros(table, np.int64),
            best=np.full(self.clusters, np.nan),
            totals=np.zeros(self.clusters),
            per_round=setup.per_round,
            seed=setup.seed,
            holdouts=setup.task.holdouts,
            rule=setup.config.aggregate,
        )

    def round(self, state: IPFLState, roster: Roster, round: int) -> Phases[IPFLState]:
        """Algorithm 1, one pass of its loop over rounds (line 1)."""
        if self.initial_clustering and round < self.pretrain:
            return (yield from self._train_as_one_model(state, roster, round))
        ids, manager = state.accounts.ids, TokenManager(state.accounts, self.price)
        state, seats = yield from self.select_clients(state, roster, round)  # 2
        training = ask_seats("train", TRAINED, ids, state.models, seats.all)  # 3, 4: for all clusters at once
        paid = manager.collect_bids(state.bids, state.bidding)  # 5
        manager.charge(paid, seats, np.zeros(len(ids), bool))  # 6
        replies = yield training
        updates, delivered = collect_updates(ids, seats.all, replies)  # 7
        models = tuple(  # 8
            updates[k].mean(model, state.rule) if k in updates else model
            for k, model in enumerate(state.models)
        )
        lost = seats.all & np.isin(ids, sorted(server_faults(replies)))[:, None]
        seats = dataclasses.replace(seats, delivered=delivered, excused=lost)
        return (yield from self._settle(state, manager, seats, updates, models))

    def select_clients(
        self, state: IPFLState, roster: Roster, round: int
    ) -> Generator[Ask, Replies, tuple[IPFLState, Seating]]:
        """Algorithm 1, SelectClients(r) (line 9): the state with this round's bids, and ζ_k."""
        ids, balances = state.accounts.ids, state.accounts.balances
        available, seats = np.isin(ids, roster.clients), Seating.empty(state.bids.shape)  # ζ_a, ζ*
        rng = stream(state.seed, "select", round)
        if round == 0:  # 10
            able = np.flatnonzero(available & (balances >= self.price))
            for place, row in enumerate(rng.permutation(able)[: state.per_round]):  # 11
                seats.explorers[row, place % self.clusters] = True  # 12
            return state, seats  # 13
        state = yield from self._collect_preferences(state, available, round)  # 14 to 16
        # 17: ψ_ki is known since the end of the round before, whose rewards went by it.
        willing = affordable_bids(balances, state.bids, self.price, state.bidding)
        spare = balances // self.price - willing.sum(axis=1)  # in prices, beside the bids
        n_p, n_r = self._count_seats(state, round)
        arrival = rng.permutation(len(ids))
        for k in range(self.clusters):  # 19
            bidders = arrival[willing[arrival, k]]
            s_c = bidders[np.argsort(-np.nan_to_num(state.psi[bidders, k]), kind="stable")]  # 18
            seats.selected[s_c[: n_p[k]], k] = True  # 20: N_p from S_c …
            able = np.flatnonzero(available & ~seats.selected[:, k] & (willing[:, k] | (spare > 0)))
            drawn = rng.choice(able, min(n_r[k], len(able)), replace=False)  # … and N_r from ζ_a
            seats.explorers[drawn, k] = True
            spare[drawn[~willing[drawn, k]]] -= 1
        return state, seats  # 21

    def _count_seats(self, state: IPFLState, round: int) -> tuple[Ints, Ints]:
        """(K,) N_p and N_r of each cluster; what K does not divide goes to other clusters in other rounds."""
        explorers = count_explorers(state.omega, self.explore, self.explore_floor)
        random = min(explorers, max(state.per_round - self.clusters, 0))
        turn = (np.arange(self.clusters) + round) % self.clusters
        seats, n_r = ((count + turn) // self.clusters for count in (state.per_round, random))
        return seats - n_r, n_r

    def client_preferences(
        self, models: Sequence[Vector], me: Client, totals: Floats, net: Sequence[int]
    ) -> tuple[list[int], NDArray[np.float64]]:
        """Algorithm 2, ClientPreferences(M_1, …, M_K) (line 1).

        Args:
            models: M_k.
            me: The client i, and with it its points D.
            totals: Σ_i n_ik of the last query.
            net: What each cluster has brought the client so far, in tokens.

        Returns:
            P_B, most wanted first, and n_ik.
        """
        n_ik, upsilon = self._importance(models, me, "train", totals)  # 2 to 4: all k, all points d
        threshold = 1 / self.clusters if self.threshold is None else self.threshold
        p_b, best = [], upsilon.argmax()
        for k in np.argsort(-upsilon, kind="stable").tolist():
            is_preferred = upsilon[k] >= threshold - ROUNDING and net[k] >= 0
            if is_preferred or k == best:  # 5
                p_b.append(k)  # 6
        # 7: P_i is made when the client predicts, in `personalize`; no round needs it.
        return p_b, n_ik  # 8

    def _importance(
        self, models: Sequence[Vector], me: Client, part: Part, totals: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """n_ik on some of the client's points, and υ_i, row-normalised."""
        if self.importance == "fedsoft":
            least = loss_table(models, me, part).argmin(axis=0)
            n_ik = np.bincount(least, minlength=len(models)).astype(np.float64)
        else:
            n_ik = np.array([float(me.score(model, part).hits) for model in models])
        n_i = np.full(len(models), float(len(me.data(part))))
        n_k = np.where(totals > 0, totals, n_i) if self.importance == "relative" else n_i
        return n_ik, row_normalised(importance_weights(n_ik, n_k))

    def on_preference(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """P_B, and n_ik where the others' importance depends on it."""
        totals = np.asarray(ask.facts["totals"])
        p_b, n_ik = self.client_preferences(read_models(ask), me, totals, ask.facts["net"])
        hits = n_ik.tolist() if self.importance == "relative" else []
        return Record({}, {"bids": p_b, "hits": hits, "n": len(me.data("train"))}), mine

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the model of every cluster that the client has a seat in, on all of its points."""
        params = {name: me.train(model) for name, model in ask.params.items()}
        return Record(params, {"n": len(me.data("train"))}), mine

    def on_appraise(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Accuracy of aggregated models on the client's points, and the gradient of the loss if asked for."""
        return appraise(ask, me), mine

    def on_confusion(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """What each model gets right and wrong of the server's holdout, by class."""
        return count_confusion(ask, me), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Eq. personalized_model: P_i = Σ_k υ_ik ω_k."""
        models = read_models(offer)
        return mix(models, self._importance(models, me, "goal", np.asarray(offer.facts["totals"]))[1])

    def _collect_preferences(
        self, state: IPFLState, available: Bools, round: int
    ) -> Generator[Ask, Replies, IPFLState]:
        """P_B of the available clients; NI: each bids for one cluster at random, or for that of K-Means."""
        ids = state.accounts.ids
        if self.initial_clustering and round == self.pretrain:
            clients, rng = ids[available].tolist(), stream(state.seed, "initial clusters")
            answered, f1 = yield from per_class_f1(state.models[0], clients, state.per_round, state.holdouts)
            wanted = initial_clusters(f1, answered, ids, self.clusters, rng)
        elif not self.incentive:
            wanted = stream(state.seed, "bids", round).integers(self.clusters, size=len(ids))
        else:
            scored = self.clusters if self.importance == "relative" else 0
            offers = {int(ids[row]): self._query(state, int(row)) for row in np.flatnonzero(available)}
            replies = yield preference_query(offers, self.clusters, lambda sent: scored)
            hits = [reply.facts["hits"] for reply in replies.values() if scored]
            totals = np.sum(hits, axis=0) if hits else state.totals
            bids, bidding = take_bids(ids, state.bids, replies), np.isin(ids, list(replies))
            return dataclasses.replace(state, bids=bids, bidding=bidding, totals=totals)
        bids = np.where(np.arange(self.clusters) == wanted[:, None], 0, NO_BID).astype(np.int16)
        return dataclasses.replace(state, bids=bids, bidding=available)

    def _query(self, state: IPFLState, row: int) -> Record:
        """What a client is sent that is asked for its preferences: the offer, and its account."""
        balance, net = int(state.accounts.balances[row]), state.accounts.net[row].tolist()
        account = {"balance": balance, "net": net, "price": self.price, "clusters": [*range(self.clusters)]}
        offer = self.offer(state, int(state.accounts.ids[row]))
        return Record(offer.params, {**offer.facts, **account})

    def _train_as_one_model(self, state: IPFLState, roster: Roster, round: int) -> Phases[IPFLState]:
        """A round before initial clustering: the market is closed."""
        model, seats = yield from train_one_model(
            state.models[0], roster, state.per_round, state.seed, round, state.rule
        )
        return Round(dataclasses.replace(state, models=(model,) * self.clusters), seats, market=Market(()))

    def _settle(
        self,
        state: IPFLState,
        manager: TokenManager,
        seats: Seating,
        updates: Mapping[int, ModelUpdates],
        models: tuple[Vector, ...],
    ) -> Phases[IPFLState]:
        """The profiler, and the token manager after training: reimbursement and rewards, as in the text."""
        manager.refund(seats.excused)
        paid, share = seats.all & ~seats.excused, {}
        ids, unknown = state.accounts.ids, np.full(paid.shape, np.nan)
        psi: dict[int, NDArray[np.float64]] = {}
        accuracy: dict[int, float] = {}
        if self.incentive:
            holdouts = state.holdouts if self.holdout == "server" else ()
            accuracy, gradients = yield from appraise_models(ids, models, seats.delivered, holdouts)
            psi = {
                k: estimate_shapley(gradients[k], found.models, found.samples, models[k], self.normalised)
                for k, found in updates.items()
            }
            rule = SettlementRule("printed", self.eta, self.gamma)
            served = Served(paid, seats.all, seats.delivered, psi, state.omega, unknown, unknown)
            known = {k: (accuracy.get(k, np.nan), float(state.best[k])) for k in range(self.clusters)}
            share = settle(manager, rule, served, known)
        else:
            manager.refund(paid)
        remembered, best, omega = state.psi.copy(), state.best.copy(), state.omega + seats.delivered
        for k, values in psi.items():
            rows = np.flatnonzero(seats.delivered[:, k])
            remembered[rows, k] = np.where(np.isnan(values), remembered[rows, k], values)
        for k, value in accuracy.items():
            best[k] = np.fmax(best[k], value)
        empty = state.per_round - int(seats.all.sum())
        collapsed, events = market_events(state.bids, empty, state.collapsed)
        after = dataclasses.replace(
            state,
            models=models,
            accounts=state.accounts.after(manager),
            psi=remembered,
            omega=omega,
            best=best,
            collapsed=collapsed,
        )
        market = Market(
            transfers=tuple(manager.transfers),
            bids=make_bids(ids, state.bids, unknown, state.bidding, np.zeros(len(ids), bool)),
            contributions=make_contributions(ids, omega, seats.delivered, psi),
            cluster_probe_accuracy=figures(accuracy),
            best_before=figures({k: float(state.best[k]) for k in accuracy}),
            reimbursed_share=figures(share),
            economy=market_stats(manager.balances, self.price, empty),
        )
        return Round(after, seats.rows(ids), events, market)

    def offer(self, state: IPFLState, client: ClientId) -> Record:
        """All K models, for everyone, and what Eq. importance_weights may need."""
        return Record(state.named, {"totals": state.totals.tolist()})

    def models(self, state: IPFLState) -> dict[str, Vector]:
        """The K models."""
        return state.named

    def preferences(self, state: IPFLState) -> dict[ClientId, int]:
        """The cluster that each client wants most, of those that bid."""
        rows, clusters = np.nonzero(state.bids == 0)
        return dict(zip(state.accounts.ids[rows].tolist(), clusters.tolist(), strict=True))

    def report(self, state: IPFLState) -> dict[str, Fact]:
        """The market at the end."""
        return bid_report(state.bids, state.collapsed) | state.accounts.report(self.price, state.psi)

    def rules(self, state: IPFLState) -> dict[str, Fact]:
        """Price and rates, for the audit of the ledger; what is not in it is as printed."""
        rates = {"price": self.price, "eta": self.eta, "gamma": self.gamma, "clusters": self.clusters}
        return {**rates, "incentive": self.incentive, **state.accounts.rules()}


def estimate_shapley(
    gradients: Sequence[tuple[Floats, float]],
    models: Sequence[Floats],
    samples: Sequence[float],
    aggregated: Floats,
    normalised: bool = True,
) -> NDArray[np.float64]:
    """Algorithm 3, Estimated Shapley value of any client in an FL: ψ_ki of the clients of one cluster.

    Args:
        gradients: Mean gradients of the loss at θ_M, each with its number of test points.
        models: θ_i.
        samples: n_i: the weights are λ_i = n_i / Σn.
        aggregated: θ_M = Σ_i λ_i θ_i.
        normalised: For normalised aggregation, or for unnormalised.

    Returns:
        One value per client; NaN where it is not known.
    """
    n_test = sum(n for _, n in gradients)
    if not n_test > 0:
        return np.full(len(models), np.nan)
    gamma = sum(n * gradient.astype(np.float64) for gradient, n in gradients) / n_test  # 1
    psi = np.empty(len(models))
    for i, (model, n) in enumerate(zip(models, samples, strict=True)):  # 2
        weight, base = n / sum(samples), aggregated.astype(np.float64) if normalised else 0.0
        psi[i] = -gamma @ (weight * (model.astype(np.float64) - base))  # 3
    return np.where(np.isfinite(psi), psi, np.nan)  # 4


def importance_weights(n_ik: Floats, n_k: Floats) -> NDArray[np.float64]:
    """(K,) Eq. importance_weights: υ_ik = n_ik/n_k of one client; with n_k of an earlier query at most 1."""
    return np.asarray(n_ik / np.maximum(np.maximum(n_k, n_ik), 1))


def row_normalised(weights: Floats) -> NDArray[np.float64]:
    """The weights with a sum of 1; uniform if all are 0."""
    total = weights.sum()
    return np.asarray(weights / total if total > 0 else np.full(len(weights), 1 / len(weights)), np.float64)
