"""The profiler's conversations: what the server asks about models, and what it makes of the answers.

g_k of the Shapley approximation is the mean gradient of the loss at W_M over points that represent cluster
k's clients: either the participants' own held-back points, or the server's holdout that suits the model best.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Ask, ClientId, Record, Replies, Roster, Vector
from ipfl.market import profiler
from ipfl.market.economy import Economy, cluster_name
from ipfl.market.warmstart import f1_from_counts
from ipfl.params import sound

Contributions = dict[int, NDArray[np.float64]]
"""ψ_ki of each cluster's providers, in ascending client id."""
Accuracies = dict[int, float]
"""Acc_kr of each cluster."""
Gradients = dict[int, NDArray[np.float64]]
Updates = Mapping[int, Replies]
"""Per cluster the sound replies of its providers."""


def gradient_name(model: str) -> str:
    """Name of the gradient at a model that travels with its update."""
    return f"gradient_{model}"


COALITIONS_AT_ONCE = 16
"""Models of coalitions that travel in one ask when Shapley values are exact: bounds the memory."""


def appraise(
    economy: Economy,
    models: Sequence[Vector],
    updates: Updates,
    source: Literal["clients", "server", "exact"],
    normalised: bool,
) -> Generator[Ask, Replies, tuple[Contributions, Accuracies]]:
    """Asks the participants how good the aggregated models are, and works out who contributed what.

    Args:
        economy: The state before the round.
        models: The aggregated models W_M.
        updates: What they were made of.
        source: Where the gradient comes from; `exact`: Shapley values over all coalitions instead.
        normalised: Which version of the approximation.
    """
    answers = yield question(models, updates, gradient=source == "clients")
    accuracy, gradient = appraised(answers, list(updates), economy.size)
    if source == "server":
        everything = Record({cluster_name(k): models[k] for k in updates}, {"gradient": True})
        scored = yield Ask("appraise", dict.fromkeys(economy.holdouts, everything))
        gradient = closest_holdout(scored, list(updates), economy.size)
    psi: Contributions = {}
    for k, replies in updates.items():
        locals_ = [replies[client].params[cluster_name(k)] for client in sorted(replies)]
        counts = np.array([replies[client].facts["n"] for client in sorted(replies)])
        if source == "exact":
            psi[k] = yield from exact_contributions(locals_, counts, economy.models[k], sorted(replies))
        elif k in gradient:
            psi[k] = profiler.contributions(gradient[k], models[k], locals_, counts, normalised)
        else:
            psi[k] = np.full(len(locals_), np.nan)
    return psi, accuracy


def question(models: Sequence[Vector], updates: Updates, *, gradient: bool) -> Ask:
    """Asks all providers about the models that they had a part in."""
    seats: dict[ClientId, dict[str, Vector]] = {}
    for k, replies in updates.items():
        for client in replies:
            seats.setdefault(client, {})[cluster_name(k)] = models[k]
    return Ask(
        "appraise", {client: Record(seats[client], {"gradient": gradient}) for client in sorted(seats)}
    )


def typical_accuracy(models: Sequence[Vector], updates: Updates) -> Generator[Ask, Replies, Accuracies]:
    """Acc_kr of a guarded market: the median of what the providers say, however many points they claim."""
    answers = yield question(models, updates, gradient=False)
    said = {k: [_counts(answer, k) for answer in answers.values()] for k in updates}
    shares = {k: [hits / n for hits, n in filter(None, counts)] for k, counts in said.items()}
    return {k: float(np.median(known)) for k, known in shares.items() if known}


def exact_contributions(
    locals_: Sequence[Vector], counts: NDArray[np.int64], before: Vector, providers: Sequence[ClientId]
) -> Generator[Ask, Replies, NDArray[np.float64]]:
    """Exact Shapley values over all coalitions, their losses measured on the providers' `probe`."""
    losses: list[float] = []
    models = profiler.coalition_models(locals_, counts, before)
    while group := list(islice(models, COALITIONS_AT_ONCE)):
        record = Record({str(position): model for position, model in enumerate(group)})
        scored = yield Ask("loss", dict.fromkeys(providers, record))
        points = sum(reply.facts["n"] for reply in scored.values())
        sums = np.sum([reply.facts["loss"] for reply in scored.values()], axis=0)
        losses += list(np.broadcast_to(sums / points if points else np.nan, len(group)))
    return profiler.shapley_from_values(losses[0] - np.asarray(losses))


def per_class_f1(
    economy: Economy, roster: Roster
) -> Generator[Ask, Replies, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Appendix Initial Clustering: ξ, the F1 per class of every client's own model on the server's samples.

    Clients train in groups of the round's size, so that no more models than usual are in memory. The
    server's holdouts of all distributions count together, as the IID test set: what sets clients apart by
    class shows, what only renames or turns the classes does not.

    Returns:
        Ids of the clients that answered, and their (n, C) scores.
    """
    counts: dict[ClientId, NDArray[np.int64]] = {}
    name = cluster_name(0)
    start = Record({name: economy.models[0]})
    for first in range(0, len(roster.clients), economy.per_round):
        group = roster.clients[first : first + economy.per_round]
        replies = yield Ask("train", dict.fromkeys(group, start))
        sent = {
            str(client): reply.params[name]
            for client, reply in replies.items()
            if sound(reply, name, economy.size)
        }
        scored = yield Ask("confusion", {holdout: Record(sent) for holdout in economy.holdouts})
        for client in sent:
            counts[int(client)] = np.sum([reply.facts[client] for reply in scored.values()], axis=0)
    clients = sorted(counts)
    f1 = [f1_from_counts(*counts[client].reshape(3, -1)) for client in clients]
    return np.asarray(clients, np.int64), np.asarray(f1)


def _counts(reply: Record, cluster: int) -> tuple[float, float] | None:
    """(hits, points) that a reply claims for a cluster; None where it says nothing sensible."""
    said = reply.facts.get(cluster_name(cluster))
    if said is None or len(said) != 2 or not 0 <= said[0] <= said[1] or not said[1] > 0:
        return None
    return float(said[0]), float(said[1])


def gradient_of(reply: Record, name: str, size: int) -> NDArray[np.float64] | None:
    """A gradient in a reply; None where it is missing or cannot be one."""
    vector = reply.params.get(name)
    if vector is None or vector.shape != (size,) or not np.isfinite(vector).all():
        return None
    return vector.astype(np.float64)


def appraised(answers: Replies, clusters: Sequence[int], size: int) -> tuple[Accuracies, Gradients]:
    """Acc_kr and g_k of each cluster, both means over the participants' points; absent where nobody said."""
    accuracy: Accuracies = {}
    gradients: Gradients = {}
    for k in clusters:
        counted = {client: counts for client in sorted(answers) if (counts := _counts(answers[client], k))}
        if counted:
            accuracy[k] = sum(hits for hits, _ in counted.values()) / sum(n for _, n in counted.values())
        weight, total = 0.0, np.zeros(size)
        for client, (_, n) in counted.items():
            if (gradient := gradient_of(answers[client], cluster_name(k), size)) is not None:
                total += n * gradient
                weight += n
        if weight:
            gradients[k] = total / weight
    return accuracy, gradients


def closest_holdout(scored: Replies, clusters: Sequence[int], size: int) -> Gradients:
    """g_k from the server's holdouts: for each cluster the one on which its model is most accurate.

    The server does not know which distribution a cluster serves; that it serves it best is all it can see.
    """
    gradients: Gradients = {}
    for k in clusters:
        best = -1.0
        for holdout in sorted(scored, reverse=True):
            counts = _counts(scored[holdout], k)
            gradient = gradient_of(scored[holdout], cluster_name(k), size)
            if counts and gradient is not None and counts[0] / counts[1] > best:
                best, gradients[k] = counts[0] / counts[1], gradient
    return gradients
