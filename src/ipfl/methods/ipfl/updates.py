"""What a round's training brings: models go out to the seats, updates come back and become the new models.

Algorithm 1, lines 4, 7 and 8. In a robust market updates are judged first; see `robust`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from ipfl.core import Ask, Record, Replies, Vector, cluster_name, gradient_name
from ipfl.core.replies import Count, ReplySchema, VectorSizes
from ipfl.methods.aggregation import aggregate
from ipfl.methods.ipfl import robust
from ipfl.methods.ipfl.appraisal import (
    Contributions,
    Gradients,
    Updates,
    ask_holdouts,
    best_holdout_gradients,
    trained_models,
)
from ipfl.methods.ipfl.arrays import Bools
from ipfl.methods.ipfl.state import MarketState


def ask_training(state: MarketState, seats: Bools, *, gradient: bool) -> Ask:
    """Every client with a seat gets the model of each cluster it has a seat in.

    Args:
        state: The state before the round.
        seats: (N, K) who has a seat where.
        gradient: Whether they are to send the gradient at that model on `probe` with their update.
    """
    to = {}
    for row in np.flatnonzero(seats.any(axis=1)):
        models = {cluster_name(k): state.models[k] for k in np.flatnonzero(seats[row]).tolist()}
        to[int(state.ids[row])] = Record(models, {"gradient": True} if gradient else {})
    return Ask("train", to, UPDATE)


def _update_vectors(sent: Record, facts: Mapping[str, Any]) -> VectorSizes:
    models = {name: len(model) for name, model in sent.params.items()}
    gradients = {gradient_name(name): size for name, size in models.items()}
    return models | gradients if sent.facts.get("gradient") else models


UPDATE = ReplySchema({"n": Count}, _update_vectors)
"""Every model that was sent, trained; the gradients at them if they were asked for; the number of samples."""


def updates_by_cluster(state: MarketState, seats: Bools, replies: Replies) -> tuple[Updates, Bools]:
    """U_k: per cluster with any, the replies of its clients; and the (N, K) seats that delivered."""
    delivered = seats & np.isin(state.ids, list(replies))[:, None]
    updates = {
        k: {int(client): replies[int(client)] for client in state.ids[delivered[:, k]]}
        for k in np.flatnonzero(delivered.any(axis=0)).tolist()
    }
    return updates, delivered


def aggregate_updates(state: MarketState, updates: Updates) -> tuple[Vector, ...]:
    """M_k = FedAvg(U_k) for every cluster; one without updates stays as it is."""
    models = {}
    for k, replies in updates.items():
        locals_, counts = trained_models(replies, k)
        models[k] = aggregate(locals_, [float(n) for n in counts], state.models[k], state.rule)
    return _models_after(state, models)


def judge_updates(
    state: MarketState, updates: Updates, decay: float, *, server: bool
) -> Generator[Ask, Replies, tuple[tuple[Vector, ...], Contributions]]:
    """The same in a robust market: M_k of what the judges found good, and ψ_ki by their votes.

    Args:
        state: The state before the round.
        updates: U_k.
        decay: Weight of the past in remembered contributions.
        server: Whether the server's own samples are the judge; else the providers judge each other.
    """
    own: Gradients = {}
    if server:
        answers = yield ask_holdouts(state.holdouts, state.models, updates)
        own = best_holdout_gradients(answers, updates)
    found, psi = {}, {}
    for k, replies in updates.items():
        clients, name = sorted(replies), gradient_name(cluster_name(k))
        sent = [replies[client].params.get(name) for client in clients]
        peers = [None if gradient is None else gradient.astype(np.float64) for gradient in sent]
        locals_, counts = trained_models(replies, k)
        verdict = robust.judge(
            state.models[k],
            locals_,
            [float(n) for n in counts],
            peers,
            state.psi[state.rows(clients), k],
            decay,
            state.rule,
            own.get(k),
        )
        found[k], psi[k] = verdict.model, verdict.psi
    return _models_after(state, found), psi


def _models_after(state: MarketState, models: Mapping[int, Vector]) -> tuple[Vector, ...]:
    return tuple(models.get(k, model) for k, model in enumerate(state.models))
