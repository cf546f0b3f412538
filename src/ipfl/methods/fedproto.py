"""FedProto: only class prototypes travel, and pull the features of everyone's own network together.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, Algorithm 1. Every
client has a network of its own, from which nothing is averaged. Its prototype of class j is the mean of its
features over its samples of that class, and the server's is their mean by numbers of samples:

    C_i^(j) = 1/|D_ij| Σ_{x ∈ D_ij} f_i(x),        C̄^(j) = Σ_i |D_ij|·C_i^(j) / Σ_i |D_ij|

A client trains on cross entropy plus λ times the distance of its features to the global prototypes of their
classes, and predicts the class whose global prototype is nearest.

A client that never took part cannot be served: the global prototypes mean nothing to a network that was not
trained towards them. A client of the federation that has not trained yet deploys the initial network, with
the prototypes there are; without any, a network's own scores decide.

Departures:
- The distance is the mean squared difference over a batch and its features, as in the authors' code, which
  has λ = 1 for MNIST and FEMNIST and 0.1 for CIFAR-10.
- The authors' code takes plain means over clients, and lets a client predict only classes that it has. Here
  the counts decide, and every class with a prototype can be predicted.
- In a round only some clients train. A class of which nobody sent a prototype keeps the one it had.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch.nn.functional import cross_entropy

from ipfl.client.client import Client
from ipfl.client.network import Network
from ipfl.client.predictors import NearestPrototype, Predictor
from ipfl.client.training import Rows
from ipfl.core import Ask, ClientId, Method, Record, Replies, Roster, Round, Setup, Vector, stream
from ipfl.core.replies import Count, ReplySchema, Whole, list_of
from ipfl.core.sections import AggregateConfig
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.methods.aggregation import aggregate
from ipfl.methods.steps import choose, random_seats, refuse_strangers

Matrix = NDArray[np.float32]
"""(classes, features): a prototype a row, zeros where there is none."""


@plain_dataclass(frozen=True)
class Prototypes:
    """State of the server: global prototypes, and what it needs to choose clients."""

    clients: tuple[ClientId, ...]
    per_round: int
    classes: int
    features: int
    seed: int
    rule: AggregateConfig
    values: Vector
    """C̄, flat, class by class; empty before the first replies."""
    known: tuple[bool, ...]
    """Whether there is a prototype, per class."""

    @property
    def record(self) -> Record:
        """What clients are sent."""
        values = {"prototypes": self.values} if any(self.known) else {}
        return Record(values, {"known": list(self.known)})


@dataclass(frozen=True)
class FedProto(Method[Prototypes]):
    """Networks of their own, with common class prototypes (Tan et al. 2022)."""

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "own networks, held together by common class prototypes (Tan et al. 2022)"

    lam: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="λ, strength of the pull towards the global prototypes"
    )

    def init(self, setup: Setup) -> Prototypes:
        """No prototypes yet."""
        if setup.features is None:
            raise InputError("prototypes need a model with a linear layer to take features from")
        return Prototypes(
            clients=setup.clients,
            per_round=setup.per_round,
            classes=setup.classes,
            features=setup.features,
            seed=setup.seed,
            rule=setup.aggregate,
            values=np.empty(0, np.float32),
            known=(False,) * setup.classes,
        )

    def round(
        self, state: Prototypes, roster: Roster, round: int
    ) -> Generator[Ask, Replies, Round[Prototypes]]:
        """Random clients train their own networks; their prototypes make the new global ones."""
        chosen = choose(roster, state.per_round, stream(state.seed, "select", round))
        counts = list_of(Whole, state.classes)
        prototypes = ReplySchema(
            {"n": Count, "counts": counts}, {"prototypes": state.classes * state.features}
        )
        replies = yield Ask("train", dict.fromkeys(chosen, state.record), prototypes)
        return Round(_merged(state, replies), random_seats(chosen, replies))

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the client's network towards the global prototypes; sends its prototypes."""
        values, known = _unfolded(ask, me.classes)
        objective = Towards(values, known, self.lam) if known.any() else None
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
        own = mine.params.get("own", me.initial)
        values, known = _unfolded(offer, me.classes)
        return NearestPrototype(own, np.where(known[:, None], values, np.nan)) if known.any() else own


class Towards:
    """Objective: cross entropy + λ·mean squared difference of features and their classes' prototypes."""

    def __init__(self, values: Matrix, known: NDArray[np.bool_], lam: float):
        self.values, self.known, self.lam = torch.from_numpy(values.copy()), torch.from_numpy(known), lam

    def __call__(self, network: Network, batch: Samples, rows: Rows) -> None:
        """Adds the gradient of one batch; samples of classes without a prototype are not pulled."""
        labels = torch.from_numpy(batch.y)
        features, scores = network.features(network.inputs(batch.x))
        apart = (features - self.values[labels])[self.known[labels]]
        loss = cross_entropy(scores, labels) + self.lam * apart.square().sum() / features.numel()
        loss.backward()  # type: ignore[no-untyped-call]


def _unfolded(record: Record, classes: int) -> tuple[Matrix, NDArray[np.bool_]]:
    """Prototypes as a matrix, and which of them there are."""
    known = np.array(record.facts["known"], np.bool_)
    values = record.params["prototypes"] if known.any() else np.empty(0, np.float32)
    return values.reshape(classes, -1) if values.size else np.empty((classes, 0), np.float32), known


def _merged(state: Prototypes, replies: Replies) -> Prototypes:
    """C̄^(j) of the replies, class by class; classes without any stay as they were."""
    if not replies:
        return state
    sent = np.stack([reply.params["prototypes"].reshape(state.classes, -1) for reply in replies.values()])
    counts = np.array([reply.facts["counts"] for reply in replies.values()])
    values = state.values.reshape(state.classes, -1).copy() if any(state.known) else np.zeros_like(sent[0])
    for j in np.flatnonzero(counts.any(axis=0)):
        having = np.flatnonzero(counts[:, j])
        weights = counts[having, j].astype(np.float64)
        values[j] = aggregate(list(sent[having, j]), weights.tolist(), values[j], state.rule)
    known = tuple((np.array(state.known) | counts.any(axis=0)).tolist())
    return replace(state, values=values.ravel(), known=known)
