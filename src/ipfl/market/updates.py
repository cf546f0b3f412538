"""What a round's training brings: models go out to the seats, updates come back and become the new models.

Algorithm 1, lines 4, 7 and 8. In a guarded market updates are judged first; see `ipfl.market.guard`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import numpy as np

from ipfl.aggregation import aggregate
from ipfl.core import Ask, Record, Replies, Vector
from ipfl.market import Bools, guard
from ipfl.market.appraisal import (
    Contributions,
    Gradients,
    Updates,
    closest_holdout,
    gradient_name,
    gradient_of,
)
from ipfl.market.economy import Economy, cluster_name
from ipfl.params import sound


def deploy(economy: Economy, seats: Bools, *, gradient: bool) -> Ask:
    """Every client with a seat gets the model of each cluster it sits in.

    Args:
        economy: The state before the round.
        seats: (N, K) who sits where.
        gradient: Whether they are to send the gradient at that model on `probe` with their update.
    """
    to = {}
    for row in np.flatnonzero(seats.any(axis=1)):
        models = {cluster_name(k): economy.models[k] for k in np.flatnonzero(seats[row]).tolist()}
        to[int(economy.ids[row])] = Record(models, {"gradient": True} if gradient else {})
    return Ask("train", to)


def collect(economy: Economy, seats: Bools, replies: Replies, events: list[str]) -> tuple[Updates, Bools]:
    """U_k: per cluster with any, the sound replies of its clients; and the (N, K) seats that delivered.

    Whoever sent NaN, another length or nothing is left out.
    """
    delivered = np.zeros_like(seats)
    for row, k in zip(*np.nonzero(seats), strict=True):
        client = int(economy.ids[row])
        delivered[row, k] = client in replies and sound(replies[client], cluster_name(k), economy.size)
        if not delivered[row, k]:
            events.append(f"client {client} sent no usable update for cluster {k}; its bid was returned")
    updates = {
        k: {int(client): replies[int(client)] for client in economy.ids[delivered[:, k]]}
        for k in np.flatnonzero(delivered.any(axis=0)).tolist()
    }
    return updates, delivered


def trained(replies: Replies, cluster: int) -> tuple[list[Vector], list[float]]:
    """The models that came back for a cluster, and their sample counts, in ascending client id."""
    kept = [replies[client] for client in sorted(replies)]
    return [reply.params[cluster_name(cluster)] for reply in kept], [float(r.facts["n"]) for r in kept]


def combine(economy: Economy, updates: Updates) -> tuple[Vector, ...]:
    """M_k = FedAvg(U_k) for every cluster; one without updates stays as it is."""
    return _with(
        economy, {k: aggregate(*trained(r, k), economy.models[k], economy.rule) for k, r in updates.items()}
    )


def judge(
    economy: Economy, updates: Updates, decay: float, *, server: bool
) -> Generator[Ask, Replies, tuple[tuple[Vector, ...], Contributions]]:
    """The same in a guarded market: M_k of what the judges found good, and ψ_ki by their votes.

    Args:
        economy: The state before the round.
        updates: U_k.
        decay: Weight of the past in remembered contributions.
        server: Whether the server's own samples are the judge; else the providers judge each other.
    """
    own: Gradients = {}
    if server:
        models = Record({cluster_name(k): economy.models[k] for k in updates}, {"gradient": True})
        scored = yield Ask("appraise", dict.fromkeys(economy.holdouts, models))
        own = closest_holdout(scored, list(updates), economy.size)
    found, psi = {}, {}
    for k, replies in updates.items():
        clients, name = sorted(replies), gradient_name(cluster_name(k))
        peers = [gradient_of(replies[client], name, economy.size) for client in clients]
        standing = economy.psi[economy.rows(clients), k]
        verdict = guard.judge(
            economy.models[k], *trained(replies, k), peers, standing, decay, economy.rule, own.get(k)
        )
        found[k], psi[k] = verdict.model, verdict.psi
    return _with(economy, found), psi


def _with(economy: Economy, models: Mapping[int, Vector]) -> tuple[Vector, ...]:
    return tuple(models.get(k, model) for k, model in enumerate(economy.models))
