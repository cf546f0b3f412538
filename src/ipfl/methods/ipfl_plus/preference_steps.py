"""What clients are told and asked before a round: who may bid, which models they score, what they bid for.

Algorithm 1, line 17, as far as the server has part in it; how a client answers is in `client_side`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Ask, ClientId, Record, Replies, Roster, cluster_name, stream
from ipfl.market.bids import NO_BID
from ipfl.market.market_arrays import Bools, Ints
from ipfl.methods.ipfl_plus.client_side import ClientSide
from ipfl.methods.ipfl_plus.guards import limit_claims
from ipfl.methods.ipfl_plus.market_state import MarketState
from ipfl.methods.ipfl_plus.preferences import importance_weights, preference_query
from ipfl.methods.shared.initial_clustering import initial_clusters, per_class_f1

BIDDERS_PER_SEAT = (2, 4)
"""Clients that may bid in a round, for each seat, at least and at most."""
MAX_QUERY_COST = 0.2
"""What a query may cost, as a share of the round's training; by the clock it is up to a quarter."""
MIN_POINTS = 8
"""Points that a client scores models on at least, if it has so many: fewer say nothing."""


class PreferenceSteps(ClientSide):
    """Who is asked what, and what for."""

    def draw_bidders(self, state: MarketState, roster: Roster, round: int) -> tuple[MarketState, Bools]:
        """The clients that may bid in this round: all, or the budget's number of them in turn.

        So a round costs the same for any N. Whose turn it is: see `take_turns`.
        """
        available = np.isin(state.ids, roster.clients)
        budget = self.preference_budget or state.per_round * self.bidders_per_seat(state)
        if self.incentive and available.sum() > budget:
            rows = stream(state.seed, "bidders", round).permutation(np.flatnonzero(available))
            chosen = rows[take_turns(state.drawn[rows], state.favourites[rows], budget, round)]
            available = np.zeros(len(state.ids), bool)
            available[chosen] = True
        return replace(state, drawn=np.where(available, round, state.drawn)), available

    def bidders_per_seat(self, state: MarketState) -> int:
        """As many as keep a query within its share of the training's cost, from 2 to 4."""
        points = min(state.points, self.preference_samples)
        affordable = self._affordable_points(state) / points if points > 0 else np.nan
        return int(np.clip(affordable, *BIDDERS_PER_SEAT)) if np.isfinite(affordable) else BIDDERS_PER_SEAT[0]

    def points_to_score(self, state: MarketState) -> int:
        """On how many points clients score each model: what the least number of bidders can afford."""
        affordable = self._affordable_points(state) / BIDDERS_PER_SEAT[0]
        return int(np.fmin(max(affordable, MIN_POINTS), self.preference_samples))

    def _affordable_points(self, state: MarketState) -> float:
        """Points on which the bidders for a seat may score each model, all together; NaN = not known.

        A pass of training counts three, a pass of scoring one.
        """
        return MAX_QUERY_COST * 3 * state.epochs * state.samples / len(state.clusters)

    def ask_preferences(
        self, state: MarketState, bidders: Bools, round: int
    ) -> Generator[Ask, Replies, MarketState]:
        """Bids for this round: asked of each client every R rounds, kept in between; none in the first."""
        since = round - self.market_opens
        state = replace(state, score=np.full_like(state.score, np.nan))
        if since == 0:
            return (yield from self.first_bids(state, bidders)) if self.initial_clustering else state
        if not self.incentive:  # NI: every client bids for one cluster at random
            if (since - 1) % self.preference_every:
                return state
            rng = stream(state.seed, "bids", round)
            return assign_bids(state, rng.choice(state.clusters, len(state.ids)))
        due = bidders & ((state.asked < 0) | (round - state.asked >= self.preference_every))
        is_open = not self.is_access_paid
        entitled = state.is_paying | (state.times_asked <= self.trial_rounds) | is_open
        rows = {int(state.ids[row]): int(row) for row in np.flatnonzero(due)}
        if not rows:
            return state
        offer = self.current_offer(state)
        query = preference_query(
            Record(offer.params, {**offer.facts, "points": self.points_to_score(state)}),
            {client: bool(entitled[row]) for client, row in rows.items()},
            {client: state.account(row) | {"price": self.price} for client, row in rows.items()},
        )
        replies = yield query
        return take_preferences(state, replies, list(rows), round, robust="claims" in self.guards)

    def first_bids(self, state: MarketState, bidders: Bools) -> Generator[Ask, Replies, MarketState]:
        """Appendix Initial Clustering: each client bids for the cluster that K-Means puts it into."""
        asked = state.ids[bidders].tolist()
        clients, f1 = yield from per_class_f1(state.models[0], asked, state.per_round, state.holdouts)
        rng = stream(state.seed, "initial clusters")
        clusters = initial_clusters(f1, clients, state.ids, len(state.models), self.varied_classes, rng)
        return assign_bids(state, clusters)

    def current_offer(self, state: MarketState) -> Record:
        """All cluster models of this moment, and how well they do on average."""
        means = state.means[state.clusters].tolist()
        return Record(state.named, {"clusters": state.clusters, "means": means})

    def offer(self, state: MarketState, client: ClientId) -> Record:
        """What Eq. importance_weights needs: all cluster models, and how well they do on average.

        A client that stopped paying keeps the models that it last bought.
        """
        row = int(state.rows([client])[0])
        if state.held is None or row not in state.held_facts or state.ids[row] != client:
            return self.current_offer(state)
        clusters, means = state.held_facts[row]
        models = np.split(state.held[client], len(clusters))
        named = {cluster_name(k): model for k, model in zip(clusters, models, strict=True)}
        return Record(named, {"clusters": [*clusters], "means": [*means]})


def take_turns(drawn: Ints, favourite: Ints, budget: int, round: int) -> NDArray[np.intp]:
    """Places of the clients whose turn it is: of every cluster's clients as large a part as of all.

    Left to chance, those who have their turn together stay together for ever, and a cluster that few of them
    want has few bidders whenever they come round. Nobody waits more than a round longer than if all took
    turns one by one.

    Args:
        drawn: (n,) round in which each client had its last turn, −1 = never: these come before all others.
        favourite: (n,) the cluster that each wants most.
        budget: How many to take: those that wait longest; of equal ones those that are given first.
        round: The present one.
    """
    waiting = np.argsort(drawn, kind="stable")
    is_sure = (drawn < 0) | (round - drawn > math.ceil(len(drawn) / budget))
    for cluster in np.unique(favourite):
        own = waiting[favourite[waiting] == cluster]
        is_sure[own[: len(own) * budget // len(drawn)]] = True
    return np.lexsort((drawn, ~is_sure))[:budget]


def take_preferences(
    state: MarketState,
    replies: Replies,
    asked: Sequence[ClientId],
    round: int,
    *,
    robust: bool = False,
) -> MarketState:
    """The bids and hit counts of a preference query, for as many clients as answered.

    Everyone else keeps earlier bids. Clients that were sent no models have bids only. In a robust market
    extreme claims are limited, and clients count alike, however many points they claim.
    """
    clusters = state.clusters
    bid_ranks, importance = state.bid_ranks.copy(), state.importance.copy()
    for row, reply in zip(state.rows(list(replies)).tolist(), replies.values(), strict=True):
        order = reply.facts["bids"]
        bid_ranks[row] = NO_BID
        bid_ranks[row, order] = np.arange(len(order))
    scored = {client: reply for client, reply in replies.items() if reply.facts["hits"]}
    score, means = np.full_like(state.score, np.nan), state.means.copy()
    typical = state.points
    if scored:
        rows = state.rows(list(scored))
        points = np.array([int(reply.facts["n"]) for reply in scored.values()])
        hits = np.asarray([reply.facts["hits"] for reply in scored.values()], np.float64)
        accuracy = hits / np.maximum(points, 1)[:, None]
        score[rows[:, None], clusters] = accuracy
        typical = float(points.mean())
        accuracy = limit_claims(accuracy, state.rule.attacker_share) if robust else accuracy
        for row, shares in zip(rows.tolist(), accuracy, strict=True):
            importance[row, clusters] = importance_weights(shares, state.means[clusters])
        means[clusters] = np.average(accuracy, axis=0, weights=None if robust else np.maximum(points, 1))
    rows = state.rows(list(asked))
    last, times = state.asked.copy(), state.times_asked.copy()
    last[rows], times[rows] = round, times[rows] + 1
    return replace(
        state,
        bid_ranks=bid_ranks,
        importance=importance,
        means=means,
        score=score,
        points=typical,
        asked=last,
        times_asked=times,
    )


def assign_bids(state: MarketState, cluster: Ints) -> MarketState:
    """Everyone bids for one given cluster: initial clustering, or random bids without incentives."""
    bid_ranks = np.full_like(state.bid_ranks, NO_BID)
    bid_ranks[np.arange(len(bid_ranks)), cluster] = 0
    return replace(state, bid_ranks=bid_ranks)
