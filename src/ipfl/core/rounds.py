"""What a round reports: who bid, trained and contributed what, which tokens moved, what a person should know.

One noun per concept, from the method to the table: each is a typed row, and `metrics.jsonl`, the ledger's
tables, the replay and the export take their columns from its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from ipfl.core.records import ClientId

S = TypeVar("S")
NO_CLUSTER = -1
"""Stands for the cluster of a row that concerns none."""
Tokens = Annotated[int, "64 bits"]
"""A number of tokens. All other whole numbers of a row fit into 32 bits."""
TransferKind = Literal["open", "allowance", "bid", "refund", "fee", "reimbursement", "reward"]
"""Why tokens moved; `ipfl.market.bank.Kind` explains each."""


class Bid(NamedTuple):
    """P_B: a client bids for a cluster."""

    client: ClientId
    cluster: int
    rank: int
    """Among the client's own bids: 0 is the most wanted."""
    score: float | None = None
    """How good the cluster's model is on the client's own points, as it said in this round; None: unknown."""
    served: bool = False
    """Whether the client was sent the models in this round, and pays for its bids, seat or no seat."""


class Seat(NamedTuple):
    """A client was asked to train."""

    client: ClientId
    cluster: int
    """`NO_CLUSTER` in methods without clusters."""
    how: Literal["performance", "random"]
    """By bid and contribution, or at random."""
    delivered: bool
    """Whether a valid update came back."""
    excused: bool = False
    """Whether none came through a fault of the server's own, for which the client does not pay."""


class Contribution(NamedTuple):
    """How much a client's update improved the model of its cluster."""

    client: ClientId
    cluster: int
    psi: float | None
    """ψ_ki; None where nobody could tell."""
    omega: int
    """Ω_ki: rounds in which the client has trained in the cluster, this one included."""


class Transfer(NamedTuple):
    """One movement of tokens between two accounts (see `ipfl.market.bank` for their numbers)."""

    kind: TransferKind
    source: int
    target: int
    amount: Tokens
    cluster: int
    """`NO_CLUSTER` where it concerns none."""
    client: ClientId
    """Whose movement it is, also where neither account is the client's (escrow → pool)."""


class Figure(NamedTuple):
    """A number that belongs to one cluster."""

    cluster: int
    value: float | None


class Event(NamedTuple):
    """Something a person should know. Logic and tests look at `kind` and `client`, never at the text."""

    kind: str
    """An identifier for every thing that can happen, such as `no_answer`."""
    client: ClientId | None
    """Whom it is about; None: no single client."""
    text: str
    """What happened. About a client it has no subject: "did not answer"."""

    def __str__(self) -> str:
        return self.text if self.client is None else f"client {self.client} {self.text}"


@dataclass(frozen=True)
class Market:
    """What a market reports of a round; None: it does not say."""

    transfers: Sequence[Transfer]
    """All tokens that moved, in this order."""
    bids: tuple[Bid, ...] | None = None
    """None while the market is closed."""
    contributions: tuple[Contribution, ...] | None = None
    cluster_probe_accuracy: tuple[Figure, ...] | None = None
    """Acc_kr."""
    best_before: tuple[Figure, ...] | None = None
    """Acc_kmax over earlier rounds."""
    reimbursed_share: tuple[Figure, ...] | None = None
    """U_k."""
    economy: dict[str, float] | None = None
    """Wealth and seats: `gini`, `broke`, `empty_seats`."""

    def line(self) -> dict[str, Any]:
        """The fields that say something, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Round(Generic[S]):
    """What a finished round hands back: the next state, and what happened."""

    state: S
    seats: tuple[Seat, ...] = ()
    """Everyone who was asked to train."""
    events: tuple[Event, ...] = ()
    market: Market | None = None
    """None for methods without tokens."""


ROW_TYPES: Mapping[str, type[NamedTuple]] = {
    "bids": Bid,
    "seats": Seat,
    "contributions": Contribution,
    "transfers": Transfer,
    "cluster_probe_accuracy": Figure,
    "best_before": Figure,
    "reimbursed_share": Figure,
    "events": Event,
}
"""Keys of a round's line in `metrics.jsonl` that hold rows, and their types."""


def with_typed_rows(line: Mapping[str, Any]) -> dict[str, Any]:
    """A round's line as JSON has it, with typed rows instead of lists."""
    return {
        key: tuple(ROW_TYPES[key](*row) for row in value) if key in ROW_TYPES else value
        for key, value in line.items()
    }


def is_below_quorum(seats: Iterable[Seat], min_clients: int) -> bool:
    """Whether fewer clients delivered than a round needs; then it is rolled back.

    A round in which nobody was to train has nothing to roll back: a market in which nobody can pay for now
    must be able to go on.
    """
    seats = list(seats)
    return bool(seats) and len({seat.client for seat in seats if seat.delivered}) < min_clients


SERVER_FAULTS = frozenset({"worker_died"})
"""Kinds of events about a client that did not answer through a fault of the server's own."""
MAX_NAMED_CLIENTS = 10
"""Clients that a summarized event names at most."""


def summarize(events: Iterable[Event]) -> list[str]:
    """Events for people: one sentence for all clients with the same event, where the first of them stood."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        groups.setdefault((event.kind, event.text), []).append(event)
    return [_sentence(group) for group in groups.values()]


def _sentence(group: list[Event]) -> str:
    clients = sorted({event.client for event in group if event.client is not None})
    if len(clients) < 2:
        return str(group[0])
    if len(clients) > MAX_NAMED_CLIENTS:
        return (
            f"{len(clients)} clients ({', '.join(map(str, clients[:MAX_NAMED_CLIENTS]))}, …) {group[0].text}"
        )
    return f"clients {', '.join(map(str, clients[:-1]))} and {clients[-1]} {group[0].text}"
