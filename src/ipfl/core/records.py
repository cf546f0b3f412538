"""What travels between server and clients: records, and the asks that send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ClientId = int
Vector = NDArray[np.float32]
"""All parameters of one model, flat (see `ipfl.training.network.Network`)."""

Fact = Any
"""An int, float, str, bool, None or a list of these: what JSON and a Flower ConfigRecord can hold."""


@dataclass(frozen=True)
class Record:
    """Every message, and all that a client remembers: named parameter vectors and named facts."""

    params: Mapping[str, Vector] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: the vectors, and the facts as JSON."""
        facts = len(json.dumps(dict(self.facts))) if self.facts else 0
        return sum(vector.nbytes for vector in self.params.values()) + facts

    def read_only(self) -> Record:
        """The same with vectors that cannot be written to, so that no client changes the server's models."""
        params = {name: vector.view() for name, vector in self.params.items()}
        for view in params.values():
            view.flags.writeable = False
        return Record(params, self.facts)


EMPTY = Record()
PRIVACY_LOSS = "epsilon"
"""The fact beside those of a method in which a client says its ε so far; the driver takes it out."""
BUDGET_SPENT = "budget_spent"
"""The fact, beside that one alone, of a client that does not answer, to stay within its budget."""


def split_privacy_facts(reply: Record) -> tuple[Record, dict[str, Fact]]:
    """A reply as the method's client side made it, and what was put beside about privacy."""
    beside = {name: reply.facts[name] for name in (PRIVACY_LOSS, BUDGET_SPENT) if name in reply.facts}
    if not beside:
        return reply, {}
    return Record(reply.params, {k: v for k, v in reply.facts.items() if k not in beside}), beside


Replies = Mapping[ClientId, Record]
"""Valid replies by client in ascending id; clients that did not answer, or not validly, are absent."""


class PhaseReplies(dict[ClientId, Record]):
    """The replies of a phase as the driver hands them to a method, and whose absence is not the client's."""

    server_faults: frozenset[ClientId] = frozenset()
    """Clients without a reply through a fault of the server's own, such as a worker process that died."""


def server_faults(replies: Replies) -> frozenset[ClientId]:
    """Clients whose reply is missing through a fault of the server's own."""
    return replies.server_faults if isinstance(replies, PhaseReplies) else frozenset()


def holdout_id(distribution: int) -> ClientId:
    """Id under which the server itself can be asked, on its own small holdout of one distribution.

    Negative, so that it never meets a client's. An ask to it stays on the server.
    """
    return -1 - distribution


def holdout_distribution(client: ClientId) -> int | None:
    """The distribution of the server's own holdout with this id; None: it is a client's."""
    return None if client >= 0 else -1 - client


def cluster_name(cluster: int) -> str:
    """Name of a cluster's model in records and files."""
    return f"cluster_{cluster}"
