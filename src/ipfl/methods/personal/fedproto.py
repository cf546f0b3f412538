"""FedProto: only class prototypes travel, and pull the features of everyone's own network together.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, Algorithm 1. Every
client has a network of its own, from which nothing is averaged. Its prototype of class j is the mean of its
features over its samples of that class, and the server's is their mean by numbers of samples:

    C_i^(j) = 1/|D_ij| Σ_{x ∈ D_ij} f_i(x),        C̄^(j) = Σ_i |D_ij|·C_i^(j) / Σ_i |D_ij|

A client trains on cross entropy plus λ times the distance of its features to the global prototypes of their
classes, and predicts the class whose global prototype is nearest.

A client that has not trained yet predicts with the initial network and the prototypes there are; without any,
a network's own scores decide. A client that never took part has no network for them and cannot be served.

Departures: the distance is the mean squared difference over a batch and its features, as in the authors' code
(λ = 1 for MNIST and FEMNIST, 0.1 for CIFAR-10), which takes plain means and predicts only classes that a
client has; only some clients train in a round, and a class that nobody sends keeps its prototype.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.config.sections import AggregateConfig
from ipfl.core import Ask, ClientId, Method, Phases, Record, Replies, Roster, Round, Setup, Vector
from ipfl.core.replies import Count, ReplySchema, Whole, list_of
from ipfl.errors import InputError
from ipfl.methods.shared.aggregation import aggregate
from ipfl.methods.shared.steps import random_seats, refuse_strangers, select_clients
from ipfl.training.network import Network
from ipfl.training.sgd import Batch, NearestPrototype, Predictor


@dataclasses.dataclass(frozen=True)
class Prototypes:
    """State of the server: global prototypes, and what it needs to choose clients."""

    clients: tuple[ClientId, ...]
    per_round: int
    seed: int
    rule: AggregateConfig
    values: Vector
    """C̄, flat, class by class; zeros where there is none."""
    known: tuple[bool, ...]
    """Whether there is a prototype, per class."""

    @property
    def record(self) -> Record:
        """What clients are sent."""
        return Record({"prototypes": self.values} if any(self.known) else {}, {"known": list(self.known)})


@dataclass(frozen=True)
class FedProto(Method[Prototypes]):
    """Networks of their own, with common class prototypes (Tan et al. 2022)."""

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "own networks, held together by common class prototypes (Tan et al. 2022)"
    needs_probe: ClassVar[bool] = False
    gives_one_network: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True

    lam: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="λ, strength of the pull to the prototypes"
    )

    def init(self, setup: Setup) -> Prototypes:
        """No prototypes yet."""
        if setup.task.features is None:
            raise InputError("prototypes need a model with a linear layer to take features from")
        none = np.zeros(setup.task.outputs * setup.task.features, np.float32), (False,) * setup.task.outputs
        return Prototypes(setup.clients, setup.per_round, setup.seed, setup.config.aggregate, *none)

    def round(self, state: Prototypes, roster: Roster, round: int) -> Phases[Prototypes]:
        """Random clients train their own networks; their prototypes make the new global ones."""
        chosen = select_clients(roster, state.per_round, state.seed, round)
        facts = {"n": Count, "counts": list_of(Whole, len(state.known))}
        vectors = {"prototypes": len(state.values)}
        expected = ReplySchema(facts, vectors, lambda said: sum(said["counts"]) == said["n"], weight="n")
        replies = yield Ask("train", dict.fromkeys(chosen, state.record), expected)
        return Round(merge_prototypes(state, replies), random_seats(chosen, replies))

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the client's network towards the global prototypes; sends its prototypes."""
        prototypes = read_prototypes(ask)
        objective = None if prototypes is None else PrototypeObjective(prototypes, self.lam, me.network)
        own = me.train(mine.params.get("own", me.initial), objective=objective)
        labels = me.data("train").y
        counts = np.bincount(labels, minlength=me.classes)
        sums = np.zeros((me.classes, me.network.classifier.in_features))
        np.add.at(sums, labels, me.features(own, "train"))
        means = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        facts = {"n": len(labels), "counts": counts.tolist()}
        return Record({"prototypes": means.ravel()}, facts), Record({"own": own})

    def offer(self, state: Prototypes, client: ClientId) -> Record:
        """The global prototypes, for clients of the federation."""
        refuse_strangers(client, state.clients, "prototypes need a network that was trained towards them")
        return state.record

    def personalize(self, offer: Record, mine: Record, me: Client) -> Predictor:
        """The client's network with the nearest global prototype."""
        own, prototypes = mine.params.get("own", me.initial), read_prototypes(offer)
        return own if prototypes is None else NearestPrototype(own, prototypes)


class PrototypeObjective:
    """Objective: cross entropy + λ·mean squared difference of features and their classes' prototypes."""

    def __init__(self, prototypes: NDArray[np.float32], lam: float, network: Network):
        self.prototypes, self.lam = network.put(prototypes), lam
        self.known = ~self.prototypes.isnan().any(dim=1)

    def __call__(self, network: Network, batch: Batch) -> None:
        """Adds the gradient of one batch; samples of classes without a prototype are not pulled."""
        labels = batch.labels
        features, scores = network.features(batch.inputs)
        differences = (features - self.prototypes[labels])[self.known[labels]]
        loss = network.loss.mean(scores, labels) + self.lam * differences.square().sum() / features.numel()
        loss.backward()  # type: ignore[no-untyped-call]


def read_prototypes(record: Record) -> NDArray[np.float32] | None:
    """(classes, features): a prototype a row, NaN where a class has none; None if no class has any."""
    known = np.array(record.facts["known"], np.bool_)
    if not known.any():
        return None
    return np.where(known[:, None], record.params["prototypes"].reshape(len(known), -1), np.float32(np.nan))


def merge_prototypes(state: Prototypes, replies: Replies) -> Prototypes:
    """C̄^(j) of the replies, class by class; classes that too few clients sent stay as they were.

    A client's samples may count less than it says: by its `n`, which the server can limit.
    """
    if not replies:
        return state
    values = state.values.reshape(len(state.known), -1).copy()
    received = np.stack([reply.params["prototypes"].reshape(values.shape) for reply in replies.values()])
    said = np.array([reply.facts["counts"] for reply in replies.values()])
    n = np.array([[reply.facts["n"]] for reply in replies.values()])
    counts = said * n / said.sum(axis=1, keepdims=True)
    known = np.array(state.known)
    for j in np.flatnonzero((counts > 0).sum(axis=0) >= state.rule.fewest):
        senders = np.flatnonzero(counts[:, j])
        weights = counts[senders, j].tolist()
        values[j] = aggregate(list(received[senders, j]), weights, values[j], state.rule)
        known[j] = True
    return dataclasses.replace(state, values=values.ravel(), known=tuple(known.tolist()))
