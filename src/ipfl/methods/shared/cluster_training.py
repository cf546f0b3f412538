"""Training and appraising the models of the clusters that each client has a seat in."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.config.sections import AggregateConfig
from ipfl.core import Ask, ClientId, Fact, Record, Replies, Vector, cluster_name
from ipfl.core.arrays import Bools
from ipfl.core.replies import Count, PointCount, ReplySchema, list_of
from ipfl.methods.shared.aggregation import aggregate


def _same_lengths(sent: Record) -> dict[str, int]:
    """As many vectors as were sent, each as long."""
    return {name: len(model) for name, model in sent.params.items()}


TRAINED = ReplySchema({"n": Count}, lambda sent, facts: _same_lengths(sent), weight="n")
"""Every model that was sent, trained, and the number of samples."""
MeanGradients = list[tuple[Vector, float]]
"""Mean gradients of the loss at a model, each with the number of points that it is the mean of."""
APPRAISED = ReplySchema(
    lambda sent: dict.fromkeys(sent.params, list_of(PointCount, 2)),
    lambda sent, facts: _same_lengths(sent) if sent.facts["gradient"] else {},
    lambda facts: all(hits <= n for hits, n in facts.values()),
)
"""Per model [hits, points], and the gradient of the loss at it if it was asked for."""


@dataclass(frozen=True)
class ModelUpdates:
    """U_k: what the clients that trained in one cluster sent, in ascending id."""

    clients: list[ClientId]
    models: list[Vector]
    samples: list[float]

    def mean(self, before: Vector, rule: AggregateConfig) -> Vector:
        """FedAvg(U_k), by numbers of samples; the model before if there are too few for the rule."""
        return aggregate(self.models, self.samples, before, rule)


def ask_seats(
    action: str,
    expects: ReplySchema,
    ids: NDArray[np.int64],
    models: Sequence[Vector],
    seats: Bools,
    **facts: Fact,
) -> Ask:
    """Every client with a seat gets the model of each cluster it has one in.

    Args:
        action: What it is asked to do.
        expects: What it answers.
        ids: (N,) client of each row.
        models: M_k.
        seats: (N, K).
        **facts: What it is told beside.
    """
    to = {}
    for row in np.flatnonzero(seats.any(axis=1)).tolist():
        own = {cluster_name(k): models[k] for k in np.flatnonzero(seats[row]).tolist()}
        to[int(ids[row])] = Record(own, facts)
    return Ask(action, to, expects)


def collect_updates(
    ids: NDArray[np.int64], seats: Bools, replies: Replies
) -> tuple[dict[int, ModelUpdates], Bools]:
    """U_k of every cluster that got any, and the (N, K) seats that delivered."""
    delivered = seats & np.isin(ids, list(replies))[:, None]
    updates = {}
    for k in np.flatnonzero(delivered.any(axis=0)).tolist():
        clients = ids[delivered[:, k]].tolist()
        models = [replies[client].params[cluster_name(k)] for client in clients]
        updates[k] = ModelUpdates(clients, models, [float(replies[client].facts["n"]) for client in clients])
    return updates, delivered


def appraise_models(
    ids: NDArray[np.int64], models: Sequence[Vector], delivered: Bools, holdouts: Sequence[ClientId] = ()
) -> Generator[Ask, Replies, tuple[dict[int, float], dict[int, MeanGradients]]]:
    """How accurate aggregated models are on their participants' own points, and the gradients at them.

    Args:
        ids: (N,) client of each row.
        models: M_k.
        delivered: (N, K) who took part in which.
        holdouts: The server's holdouts; of each cluster the gradient is taken on the one that its model is
            most accurate on. None given: on the participants' own points.

    Returns:
        Acc_kr and the gradients, by cluster; without answers a cluster has no accuracy, and no gradient in
        its list.
    """
    clusters = np.flatnonzero(delivered.any(axis=0)).tolist()
    if not clusters:
        return {}, {}
    own = judges = yield ask_seats("appraise", APPRAISED, ids, models, delivered, gradient=not holdouts)
    if holdouts:
        sent = Record({cluster_name(k): models[k] for k in clusters}, {"gradient": True})
        judges = yield Ask("appraise", dict.fromkeys(holdouts, sent), APPRAISED)
    accuracy: dict[int, float] = {}
    gradients: dict[int, MeanGradients] = {}
    for k in clusters:
        name = cluster_name(k)
        counts = [reply.facts[name] for reply in own.values() if name in reply.facts]
        if points := sum(n for _, n in counts):
            accuracy[k] = sum(hits for hits, _ in counts) / points
        answers = [reply for reply in judges.values() if name in reply.params]
        if holdouts:
            answers = sorted(answers, key=lambda reply: -_hit_rate(*reply.facts[name]))[:1]
        gradients[k] = [(reply.params[name], reply.facts[name][1]) for reply in answers]
    return accuracy, gradients


def _hit_rate(hits: float, points: float) -> float:
    return hits / max(points, 1)


def appraise(ask: Record, me: Client) -> Record:
    """A client's answer: hits and points of each model on what it trains on, and gradients if asked for."""
    scores = {name: me.score(model, "train") for name, model in ask.params.items()}
    wanted = ask.params.items() if ask.facts["gradient"] else ()
    facts = {name: [float(score.hits), float(score.n)] for name, score in scores.items()}
    return Record({name: me.gradient(model, "train") for name, model in wanted}, facts)
