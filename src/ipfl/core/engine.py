"""What an engine is: it carries asks to clients and replies back, and keeps what clients remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ipfl.core.records import ClientId, Replies
from ipfl.core.replies import Ask
from ipfl.core.rounds import Event


@dataclass
class Bytes:
    """Bytes that the server sent and received."""

    down: int = 0
    up: int = 0


class Engine(Protocol):
    """Moves records and keeps client memory; knows of its method only that it can be called."""

    events: list[Event]
    """Things a person should know (a worker died, a node is gone), until the loop takes them."""
    traffic: Bytes | None
    """What really travelled, until the loop takes it; None: nothing does, and the loop counts the records."""

    def present(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Those of the clients that can be asked in the round that begins."""
        ...

    def ask(self, ask: Ask, round: int) -> Replies:
        """Runs one phase, and returns what came back, valid or not, without clients that did not answer."""
        ...

    def commit(self, round: int) -> None:
        """This round will never be played again; memories that only it needed may go."""
        ...

    def roll_back(self, round: int) -> None:
        """Clients forget what rounds after this one left: they will be played again, or never count."""
        ...

    def close(self) -> None:
        """Ends all that was started."""
        ...
