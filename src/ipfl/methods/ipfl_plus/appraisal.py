"""What the profiler asks about models, and what it makes of the answers.

g_k of the Shapley approximation is the mean gradient of the loss at W_M over points that represent cluster
k's clients: either the participants' own held-back points, or the server's holdout that suits the model best.
Leaving one out (`loo`) takes the other providers' points, and no gradient.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Ask, ClientId, Record, Replies, Vector, cluster_name
from ipfl.core.replies import NonNegative, Number, PointCount, ReplySchema, VectorSizes, Whole, list_of
from ipfl.methods.ipfl_plus import profiler
from ipfl.methods.ipfl_plus.ipfl_settings import ContributionRule
from ipfl.methods.ipfl_plus.market_state import MarketState
from ipfl.methods.ipfl_plus.updates import ClusterUpdates, Updates

Contributions = dict[int, NDArray[np.float64]]
"""ψ_ki of each cluster's providers, in ascending client id."""
Accuracies = dict[int, float]
"""Acc_kr of each cluster."""
Gradients = dict[int, NDArray[np.float64]]

MAX_COALITIONS_PER_ASK = 16
"""Models of coalitions that travel in one ask when Shapley values are exact: bounds the memory."""


def appraise(
    state: MarketState, models: Sequence[Vector], updates: Updates, source: ContributionRule, normalised: bool
) -> Generator[Ask, Replies, tuple[Contributions, Accuracies]]:
    """Asks the participants how good the aggregated models are, and works out who contributed what.

    Acc_kr comes along where they are asked for gradients.

    Args:
        state: The state before the round.
        models: The aggregated models W_M.
        updates: What they were made of.
        source: Where the gradient comes from, or which other way to value an update.
        normalised: Which version of the approximation.
    """
    gradient: Gradients = {}
    accuracy: Accuracies = {}
    if source == "clients":
        answers = yield ask_providers(models, updates, gradient=True)
        accuracy, gradient = pool_answers(answers, updates, state.size)
    elif source == "server":
        answers = yield ask_holdouts(state.holdouts, models, updates)
        gradient = best_holdout_gradients(answers, updates)
    psi: Contributions = {}
    for k, found in updates.items():
        if source == "exact":
            psi[k] = yield from exact_contributions(found)
        elif source == "loo":
            psi[k] = yield from contributions_without(found, models[k])
        elif k in gradient:
            psi[k] = profiler.estimate_contributions(
                gradient[k], models[k], found.models, found.weights, normalised
            )
        else:
            psi[k] = np.full(len(found.clients), np.nan)
    return psi, accuracy


def measure_accuracy(models: Sequence[Vector], updates: Updates) -> Generator[Ask, Replies, Accuracies]:
    """Acc_kr: the mean accuracy of the aggregated models on their providers' own points."""
    answers = yield ask_providers(models, updates, gradient=False)
    return pool_answers(answers, updates, 0)[0]


def ask_providers(models: Sequence[Vector], updates: Updates, *, gradient: bool) -> Ask:
    """Asks all providers about the models that they had a part in."""
    seats: dict[ClientId, dict[str, Vector]] = {}
    for k, found in updates.items():
        for client in found.clients:
            seats.setdefault(client, {})[cluster_name(k)] = models[k]
    to = {client: Record(seats[client], {"gradient": gradient}) for client in sorted(seats)}
    return Ask("appraise", to, APPRAISAL)


def ask_holdouts(holdouts: Iterable[ClientId], models: Sequence[Vector], clusters: Iterable[int]) -> Ask:
    """Asks the server's own holdouts about models, with gradients."""
    record = Record({cluster_name(k): models[k] for k in clusters}, {"gradient": True})
    return Ask("appraise", dict.fromkeys(holdouts, record), APPRAISAL)


def _appraisal_vectors(sent: Record, facts: Mapping[str, Any]) -> VectorSizes:
    return {name: len(model) for name, model in sent.params.items()} if sent.facts["gradient"] else {}


APPRAISAL = ReplySchema(
    lambda sent: dict.fromkeys(sent.params, list_of(PointCount, 2)),
    _appraisal_vectors,
    lambda facts: all(hits <= n for hits, n in facts.values()),
)
"""Per model [hits, points], and the gradient at it if it was asked for."""


def contributions_without(
    found: ClusterUpdates, aggregate: Vector
) -> Generator[Ask, Replies, NDArray[np.float64]]:
    """Leave one out: ψ_i = what W_M gets right on the *other* providers' points, beyond W_M without W_i.

    By soft hits (the probability of the true class) per point; NaN for a single provider, and where no other
    provider answered.
    """
    n = len(found.clients)
    without = [np.arange(n) != i for i in range(n)]
    rest = [profiler.coalition_model(found.models, found.weights, found.before, keep) for keep in without]
    record = Record({str(i): model for i, model in enumerate([aggregate, *rest])})
    schema = ReplySchema({"loss": list_of(Number, n + 1), "soft": list_of(NonNegative, n + 1), "n": Whole})
    answers = yield Ask("loss", dict.fromkeys(found.clients, record), schema)
    psi = np.full(n, np.nan)
    for i, keep in enumerate(without):
        others = [found.clients[j] for j in np.flatnonzero(keep)]
        judges = [answers[client].facts for client in others if client in answers]
        if points := sum(facts["n"] for facts in judges):
            psi[i] = sum(facts["soft"][0] - facts["soft"][i + 1] for facts in judges) / points
    return psi


def exact_contributions(found: ClusterUpdates) -> Generator[Ask, Replies, NDArray[np.float64]]:
    """Exact Shapley values over all coalitions, their losses measured on the providers' `probe`."""
    losses: list[float] = []
    models = profiler.coalition_models(found.models, found.weights, found.before)
    while group := list(islice(models, MAX_COALITIONS_PER_ASK)):
        record = Record({str(position): model for position, model in enumerate(group)})
        count = len(group)
        schema = ReplySchema(
            {"loss": list_of(Number, count), "soft": list_of(NonNegative, count), "n": Whole}
        )
        scored = yield Ask("loss", dict.fromkeys(found.clients, record), schema)
        points = sum(reply.facts["n"] for reply in scored.values())
        sums = np.sum([reply.facts["loss"] for reply in scored.values()], axis=0)
        losses += list(np.broadcast_to(sums / points if points else np.nan, len(group)))
    return profiler.shapley_from_values(losses[0] - np.asarray(losses))


def _counts(answers: Replies, cluster: int) -> list[tuple[ClientId, float, float]]:
    """(client, hits, points) of those that scored a cluster's model on any points, in ascending id."""
    name = cluster_name(cluster)
    scores = [(c, *answers[c].facts[name]) for c in sorted(answers) if name in answers[c].facts]
    return [(client, float(hits), float(n)) for client, hits, n in scores if n > 0]


def pool_answers(answers: Replies, clusters: Iterable[int], size: int) -> tuple[Accuracies, Gradients]:
    """Acc_kr and g_k of each cluster, both means over the participants' points; absent without answers."""
    accuracy: Accuracies = {}
    gradients: Gradients = {}
    for k in clusters:
        counts = _counts(answers, k)
        if not counts:
            continue
        points = sum(n for _, _, n in counts)
        accuracy[k] = sum(hits for _, hits, _ in counts) / points
        if all(cluster_name(k) in answers[client].params for client, _, _ in counts):
            weighted = np.zeros(size)
            for client, _, n in counts:
                weighted += n * answers[client].params[cluster_name(k)].astype(np.float64)
            gradients[k] = weighted / points
    return accuracy, gradients


def best_holdout_gradients(answers: Replies, clusters: Iterable[int]) -> Gradients:
    """g_k from the server's holdouts: for each cluster the one on which its model is most accurate.

    The server does not know which distribution a cluster serves; that it serves it best is all it can see.
    """
    gradients: Gradients = {}
    for k in clusters:
        best = -1.0
        for holdout, hits, n in reversed(_counts(answers, k)):
            if hits / n > best:
                best = hits / n
                gradients[k] = answers[holdout].params[cluster_name(k)].astype(np.float64)
    return gradients
