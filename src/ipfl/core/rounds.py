"""What a round reports: who trained, and what a person should know.

One noun per concept, from the method to the table: each is a typed row. What a market reports beside is in
`ipfl.market.market_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from ipfl.core.records import ClientId

S = TypeVar("S")
NO_CLUSTER = -1
"""Stands for the cluster of a row that concerns none."""


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


class RoundReport(Protocol):
    """What a method reports of a round beside seats and events."""

    def line(self) -> Mapping[str, Any]:
        """By the keys that `metrics.jsonl` has it under."""
        ...


@dataclass(frozen=True)
class Round(Generic[S]):
    """What a finished round hands back: the next state, and what happened."""

    state: S
    seats: tuple[Seat, ...] = ()
    """Everyone who was asked to train."""
    events: tuple[Event, ...] = ()
    market: RoundReport | None = None
    """What a market reports beside; None for methods without tokens."""


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
