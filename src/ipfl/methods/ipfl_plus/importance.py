"""Importance: how much each cluster model matters to a client, and for which clusters it bids (Algorithm 2).

The paper's rule: υ_ik = n_ik / n_i, the share of the client's own points that model k gets right. One model
that is a little better for everybody then draws all clients. So here, by default:

- υ_ik is relative to the cluster's mean over the clients asked: a client goes where it is better served than
  others are;
- hits are soft, by probability of the true class: a few dozen points tell models apart sooner;
- clients score models on points that they do not train on until half of the run is over (`RunFacts`).

A query costs a round the same for any number of clients: as many of them may bid as the budget allows, in
turn. All but the query itself runs at the client; the server sees bids and hit counts only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client, Part
from ipfl.core import Record, Replies, Roster, Vector, cluster_name, stream
from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.market.bids import NO_BID, take_bids
from ipfl.methods.ipfl import row_normalised
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.updates import Updates

THRESHOLD_TOLERANCE = 1e-6
"""Importance that misses the threshold by less than float32 resolves passes: K times 1/K all reach 1/K."""
FEEDBACK = 0.1
"""Weight of a client's own past returns in its order of preference."""
BIDDERS_PER_SEAT = (2, 4)
"""Clients that may bid in a round, for each seat, at least and at most."""
MAX_QUERY_COST = 0.2
"""Cost of a query, as a share of the round's training, at most; by the clock it is up to a quarter."""
MIN_POINTS = 8
"""Points that a client scores models on at least, if it has so many: fewer say nothing."""


@dataclasses.dataclass(frozen=True)
class Preferences:
    """P_B, and the answers that the server has of its clients."""

    ranks: NDArray[np.int16]
    """(N, K) rank of each client's bids, 0 = most wanted, `NO_BID`."""
    importance: NDArray[np.float64]
    """(N, K) υ_ik as last answered, NaN = never."""
    means: NDArray[np.float64]
    """(K,) mean accuracy of each cluster model over the last query; ones before the first."""
    score: NDArray[np.float64]
    """(N, K) score of each model on the client's points as answered in this round; NaN = not asked."""
    points: float
    """Mean number of points that a client scores models on, as answered last; NaN = not known."""
    samples: float
    """Mean number of samples that a client trains on, as answered last; NaN = not known."""
    drawn: NDArray[np.int64]
    """(N,) round in which each client could last bid, −1 = never."""
    asked: NDArray[np.int64]
    """(N,) round in which each client was last asked for preferences, −1 = never."""
    times_asked: NDArray[np.int64]
    """(N,) how often."""

    @classmethod
    def start(cls, n: int, k: int) -> Preferences:
        """No bids, and nobody was ever asked."""
        return cls(
            ranks=np.full((n, k), NO_BID, np.int16),
            importance=np.full((n, k), np.nan),
            means=np.ones(k),
            score=np.full((n, k), np.nan),
            points=np.nan,
            samples=np.nan,
            drawn=np.full(n, -1),
            asked=np.full(n, -1),
            times_asked=np.zeros(n, np.int64),
        )

    @property
    def favourites(self) -> NDArray[np.int64]:
        """(N,) the cluster that each client wants most, −1 = it has no bid."""
        rank = np.where(self.ranks >= 0, self.ranks, np.iinfo(np.int16).max)
        return np.where((self.ranks >= 0).any(axis=1), rank.argmin(axis=1), -1)

    def unscored(self) -> Preferences:
        """The same before the clients of a round are asked."""
        return dataclasses.replace(self, score=np.full_like(self.score, np.nan))

    def with_samples(self, updates: Updates) -> Preferences:
        """With the mean number of samples behind an update of this round; as before if there was none."""
        counts = [weight for found in updates.values() for weight in found.weights]
        return dataclasses.replace(self, samples=float(np.mean(counts))) if counts else self

    def with_one_bid_each(self, cluster: Ints) -> Preferences:
        """Every client bids for one given cluster: random bids without incentives."""
        ranks = np.full_like(self.ranks, NO_BID)
        ranks[np.arange(len(ranks)), cluster] = 0
        return dataclasses.replace(self, ranks=ranks)


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Importance:
    """How clients weigh the cluster models, and which clients are asked."""

    rule: Literal["relative", "paper"] = Field(
        default="relative",
        description="relative: soft hits on held-back points beside the cluster's mean over clients; "
        "paper: the share of the client's own points that the model gets right",
    )
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="T_h on the importance weights; omitted: 1/K"
    )
    samples: int = Field(default=128, ge=1, description="points a client scores models on, at most")
    budget: int | None = Field(
        default=None,
        ge=1,
        description="clients that may bid in a round, by turns; omitted: 2 to 4 for a seat",
    )

    @property
    def holds_back(self) -> bool:
        """Whether points for the scores are held back from training in the first rounds."""
        return self.rule == "relative"

    def draw_bidders(
        self, known: Preferences, run: RunFacts, roster: Roster, round: int
    ) -> tuple[Preferences, Bools]:
        """(N,) the clients that may bid in this round: all, or the budget's number of them in turn."""
        available = run.among(roster.clients)
        budget = self.budget or run.per_round * self.bidders_per_seat(known, run)
        if available.sum() > budget:
            rows = stream(run.seed, "bidders", round).permutation(np.flatnonzero(available))
            chosen = rows[take_turns(known.drawn[rows], known.favourites[rows], budget, round)]
            available = np.zeros(len(run.ids), bool)
            available[chosen] = True
        return dataclasses.replace(known, drawn=np.where(available, round, known.drawn)), available

    def bidders_per_seat(self, known: Preferences, run: RunFacts) -> int:
        """As many as keep a query within its share of the training's cost, from 2 to 4."""
        points = min(known.points, self.samples)
        affordable = _affordable_points(known, run) / points if points > 0 else np.nan
        return int(np.clip(affordable, *BIDDERS_PER_SEAT)) if np.isfinite(affordable) else BIDDERS_PER_SEAT[0]

    def points_to_score(self, known: Preferences, run: RunFacts) -> int:
        """On how many points clients score each model: as many as the least number of bidders can afford."""
        if self.rule == "paper":
            return self.samples
        affordable = _affordable_points(known, run) / BIDDERS_PER_SEAT[0]
        return int(np.fmin(max(affordable, MIN_POINTS), self.samples))

    def take_answers(
        self,
        known: Preferences,
        run: RunFacts,
        replies: Replies,
        asked: NDArray[np.int64],
        round: int,
        *,
        limit_claims: bool,
    ) -> Preferences:
        """The bids and hit counts of a query, of as many clients as answered.

        Everyone else keeps earlier bids. Clients that were sent no models have bids only.

        Args:
            known: The answers before.
            run: Facts of the run.
            replies: The valid answers.
            asked: Rows of the clients that were asked.
            round: Its number.
            limit_claims: Whether extreme claims are cut, and clients count alike, however many points they
                claim.
        """
        importance = known.importance.copy()
        scored = {client: reply for client, reply in replies.items() if reply.facts["hits"]}
        score, means, typical = np.full_like(known.score, np.nan), known.means, known.points
        if scored:
            rows = run.rows(list(scored))
            points = np.array([int(reply.facts["n"]) for reply in scored.values()])
            hits = np.asarray([reply.facts["hits"] for reply in scored.values()], np.float64)
            accuracy = hits / np.maximum(points, 1)[:, None]
            score[rows] = accuracy
            typical = float(points.mean())
            if limit_claims:
                accuracy = cut_extremes(accuracy, run.rule.attacker_share)
            for row, shares in zip(rows.tolist(), accuracy, strict=True):
                importance[row] = self.weigh(shares, known.means)
            means = np.average(accuracy, axis=0, weights=None if limit_claims else np.maximum(points, 1))
        last, times = known.asked.copy(), known.times_asked.copy()
        last[asked], times[asked] = round, times[asked] + 1
        return dataclasses.replace(
            known,
            ranks=take_bids(run.ids, known.ranks, replies),
            importance=importance,
            means=means,
            score=score,
            points=typical,
            asked=last,
            times_asked=times,
        )

    def bid(self, ask: Record, me: Client, price: int) -> Record:
        """ClientPreferences at the client: importance weights on its own points, bids most wanted first.

        A client that is sent no models, because it did not pay, bids by its last answer.
        """
        clusters: list[int] = ask.facts["clusters"]
        importance = np.asarray(ask.facts["importance"])
        hits, n = np.zeros(0), 0
        if ask.params:
            models = [ask.params[cluster_name(k)] for k in clusters]
            hits, n = self.count_hits(models, me, self._scored_parts, ask.facts["points"])
            importance = self.weigh(hits / max(n, 1), np.asarray(ask.facts["means"]))
        returns = mean_returns(ask.facts["seats"], ask.facts["net"], price)
        order = choose_bids(importance, self.threshold, returns) if importance.any() else []
        bids = [clusters[position] for position in order]
        return Record({}, {"bids": bids, "hits": hits.tolist(), "n": n})

    def count_hits(
        self, models: Sequence[Vector], me: Client, parts: Sequence[Part], limit: int
    ) -> tuple[NDArray[np.float64], int]:
        """n_ik for every cluster k, and the number of points, `limit` of each part at most."""
        scores = [[me.score(model, part, limit) for part in parts] for model in models]
        is_soft = self.rule == "relative"
        hits = [sum(one.soft if is_soft else one.hits for one in found) for found in scores]
        return np.array(hits, np.float64), sum(one.n for one in scores[0])

    def weigh(self, accuracy: Floats, means: Floats) -> NDArray[np.float64]:
        """(K,) υ_i of a client for which the models have this accuracy; `means`: over the clients asked."""
        return relative_importance(accuracy, means if self.rule == "relative" else np.ones_like(means))

    @property
    def _scored_parts(self) -> tuple[Part, ...]:
        return ("probe",) if self.holds_back else ("train", "probe")


def _affordable_points(known: Preferences, run: RunFacts) -> float:
    """Points on which the bidders for a seat may score each model, all together; NaN = not known.

    A pass of training counts three, a pass of scoring one.
    """
    return MAX_QUERY_COST * 3 * run.epochs * known.samples / len(known.means)


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


def relative_importance(accuracy: Floats, means: Floats) -> NDArray[np.float64]:
    """Eq. importance_weights, with n_k the cluster's total over the clients asked: how much i matters to k.

    With n_ik = accuracy_ik·|D_i| and n_k = means_k·(points of all clients asked), the two numbers of points
    do not depend on k and drop out when the row is normalised: accuracy and mean accuracy are enough. With
    means of one it is the paper's own share n_ik / n_i, row-normalised.

    Args:
        accuracy: (K,) accuracy (or mean probability of the true class) of each model on the client's points.
        means: (K,) mean accuracy of each cluster over the last query; ones before the first.

    Returns:
        (K,) υ_i, which sums to 1: uniform if no model gets anything right. An accuracy that is not a
        positive number counts as 0; a mean that is none as the average of the others.
    """
    hits = np.where(np.isfinite(accuracy) & (accuracy > 0), accuracy, 0.0)
    known = np.isfinite(means) & (means > 0)
    typical = float(means[known].mean()) if known.any() else 1.0
    return row_normalised(hits / np.where(known, means, typical))


def cut_extremes(accuracy: Floats, attacker_share: float) -> NDArray[np.float64]:
    """(n, K) claimed accuracies, the highest and lowest `attacker_share` of each cluster's cut to the next.

    A cluster that serves 1/K of the clients must not lose them for outliers, so half of that is the most
    that is cut off on either side.
    """
    cut = min(attacker_share, 0.5 / accuracy.shape[1])
    low, high = np.quantile(accuracy, [cut, 1 - cut], axis=0, method="nearest")
    return np.clip(accuracy, low, high)


def choose_bids(
    importance: Floats, threshold: float | None = None, returns: Floats | None = None
) -> list[int]:
    """P_B of Algorithm 2: the clusters the client bids for, most wanted first.

    Preferred is every cluster with υ_ik ≥ T_h, and the one with the largest υ_ik in any case. A preferred
    cluster is bid for under individual rationality: if the expected net return is not negative or unknown, or
    if it has appeal. Appeal has the cluster with the client's largest υ_ik: the model that counts most when
    it personalizes is worth the price.

    Args:
        importance: (K,) row-normalised υ_i.
        threshold: T_h; None: 1/K.
        returns: (K,) the client's own mean net return per seat in units of the price (see
            `mean_returns`), NaN where it never had one; None: nowhere.

    Returns:
        Cluster numbers by υ_k + `FEEDBACK`·clip(return_k, −1, 1)/K; equal scores in ascending order.
    """
    k = len(importance)
    returns = np.full(k, np.nan) if returns is None else returns
    appealing = np.arange(k) == np.argmax(importance)
    preferred = importance >= (1 / k if threshold is None else threshold) - THRESHOLD_TOLERANCE
    rational = ~(returns < 0)
    expected = np.clip(np.nan_to_num(returns, nan=0.0), -1, 1)
    order = np.argsort(-(importance + FEEDBACK * expected / k), kind="stable")
    return [int(cluster) for cluster in order if appealing[cluster] or (preferred & rational)[cluster]]


def mean_returns(seats: Sequence[int], net: Sequence[int], price: int) -> NDArray[np.float64]:
    """(K,) a client's mean net return per seat in each cluster, in units of the price; NaN without a seat.

    Args:
        seats: Seats that it has had in each cluster, ever. Totals: a lost answer counts nothing twice.
        net: Their income in all: reimbursed + earned − paid, in tokens.
        price: τ_p.
    """
    count = np.asarray(seats, np.float64)
    return np.where(count > 0, np.asarray(net, np.float64) / price / np.maximum(count, 1), np.nan)
