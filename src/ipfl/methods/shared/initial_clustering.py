"""Initial clustering (appendix "Initial Clustering"): K-Means on what the clients' models are good at.

After a few rounds of pre-training, each client's model is scored on IID test data of the server; clients
whose per-class F1 is alike start in the same cluster. Later they settle by preference and contribution.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.config.sections import AggregateConfig
from ipfl.core import Ask, ClientId, Record, Replies, Roster, Seat, Vector, cluster_name
from ipfl.core.arrays import Floats, Ints
from ipfl.core.replies import ReplySchema, Whole
from ipfl.methods.shared.steps import average_models, expect_update, random_seats, select_clients

VARIED_CLASSES = 10
"""Classes with the most varied F1 that clients are compared by."""
STARTS = 10
"""K-Means runs, of which the tightest is kept."""


def train_one_model(
    model: Vector, roster: Roster, per_round: int, seed: int, round: int, rule: AggregateConfig
) -> Generator[Ask, Replies, tuple[Vector, tuple[Seat, ...]]]:
    """A round of pre-training: random clients train one model; the model after it, and their seats."""
    chosen, name = select_clients(roster, per_round, seed, round), cluster_name(0)
    to = dict.fromkeys(chosen, Record({name: model}))
    replies = yield Ask("train", to, expect_update({name: len(model)}))
    return average_models(replies, name, model, rule), random_seats(chosen, replies)


def per_class_f1(
    model: Vector, clients: Sequence[ClientId], group_size: int, holdouts: Sequence[ClientId]
) -> Generator[Ask, Replies, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """ξ, the F1 per class of every client's own model on the server's samples.

    Clients train in groups, so that no more models than usual are in memory. The server's holdouts of all
    distributions count together, as the IID test set: what sets clients apart by class shows, what only
    renames or turns the classes does not.

    Args:
        model: What all are trained from.
        clients: Who is asked.
        group_size: How many of them at a time.
        holdouts: Under which ids the server can be asked about its own samples.

    Returns:
        Ids of the clients that answered, and their (n, C) scores.
    """
    counts: dict[ClientId, NDArray[np.int64]] = {}
    name = cluster_name(0)
    for first in range(0, len(clients), group_size):
        to = dict.fromkeys(clients[first : first + group_size], Record({name: model}))
        replies = yield Ask("train", to, expect_update({name: len(model)}))
        sent = {str(client): reply.params[name] for client, reply in replies.items()}
        schema = ReplySchema(dict.fromkeys(sent, list[Whole]))
        scored = yield Ask("confusion", dict.fromkeys(holdouts, Record(sent)), schema)
        for client in sent:
            counts[int(client)] = np.sum([reply.facts[client] for reply in scored.values()], axis=0)
    answered = sorted(counts)
    f1 = [f1_from_counts(*counts[client].reshape(3, -1)) for client in answered]
    return np.asarray(answered, np.int64), np.asarray(f1)


def count_confusion(ask: Record, me: Client) -> Record:
    """The server's reply to `confusion`: what each model gets right and wrong of its holdout, by class."""
    labels = me.data("train").y
    guesses = {name: me.predict(model, "train") for name, model in ask.params.items()}
    counts = {name: confusion(guess, labels, me.classes) for name, guess in guesses.items()}
    return Record({}, {name: count.tolist() for name, count in counts.items()})


def confusion(guess: Ints, labels: Ints, classes: int) -> NDArray[np.int64]:
    """(3·C,) true positives, false positives and false negatives of every class, one after the other."""
    predicted, actual = (np.bincount(points, minlength=classes) for points in (guess, labels))
    right = np.bincount(labels[guess == labels], minlength=classes)
    return np.concatenate([right, predicted - right, actual - right])


def f1_from_counts(tp: Ints, fp: Ints, fn: Ints) -> NDArray[np.float64]:
    """ξ, the F1 score 2·tp/(2·tp + fp + fn) per client and class; 0 for a class that never occurs."""
    return np.asarray(2 * tp / np.maximum(2 * tp + fp + fn, 1), np.float64)


def varied_classes(f1: Floats, kept: int) -> NDArray[np.int64]:
    """Eq. imprtant_features: the classes with the largest V_F1 = var(ξ) over clients, ties by class number.

    Args:
        f1: (n, C) F1 per client and class.
        kept: How many; all of them if there are fewer.
    """
    return np.argsort(-f1.var(axis=0), kind="stable")[:kept].astype(np.int64)


def initial_clusters(
    f1: Floats,
    answered: Ints,
    all_clients: Ints,
    clusters: int,
    rng: np.random.Generator,
    classes_kept: int = VARIED_CLASSES,
) -> NDArray[np.int64]:
    """The first cluster of every client.

    Args:
        f1: (n, C) F1 per class of the clients that answered in time.
        answered: (n,) their ids.
        all_clients: (N,) everyone; the others get a random cluster.
        clusters: K; where fewer clients answered than that, or they are too much alike, K-Means finds
            as many groups as they form.
        rng: Of this round.
        classes_kept: Number of classes to compare.

    Returns:
        (N,) cluster numbers in the order of `all_clients`.
    """
    from sklearn.cluster import KMeans  # takes as long to import as torch

    assigned = rng.integers(clusters, size=len(all_clients))
    seed = int(rng.integers(2**31))
    finite = np.isfinite(f1).all(axis=1)
    if not finite.any():
        return assigned
    points = f1[finite][:, varied_classes(f1[finite], classes_kept)]
    groups = min(clusters, len(np.unique(points, axis=0)))
    labels = KMeans(groups, n_init=STARTS, random_state=seed).fit_predict(points)
    found = dict(zip(answered[finite].tolist(), labels.tolist(), strict=True))
    return np.array(
        [found.get(i, random) for i, random in zip(all_clients.tolist(), assigned.tolist(), strict=True)]
    )
