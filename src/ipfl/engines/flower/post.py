"""Sends messages to nodes and waits for the answers, up to a deadline."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ipfl.core import Bytes
from ipfl.engines.flower.directory import NodeId
from ipfl.engines.flower.messages import wire_bytes

K = TypeVar("K")
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Flower noticed before us that the time for a message is over."""


@dataclass(frozen=True)
class Letter:
    """What one node is to be sent."""

    node: NodeId
    type: str
    content: RecordDict


@dataclass(frozen=True)
class Answer:
    """What came back: content, or why there is none."""

    content: RecordDict | None
    trouble: str = ""


@dataclass
class Post:
    """The way over a Flower grid.

    Args:
        grid: Flower's connection to the nodes.
        deadline: Seconds for a phase; None: until everyone has answered.
        poll: Seconds between looks at the mail.
        alive: Raises if the other side has ended.
        window: Messages on their way at once; None: all of a phase.
    """

    grid: Grid
    deadline: float | None
    poll: float
    alive: Callable[[], None]
    window: int | None = None
    traffic: Bytes = field(default_factory=Bytes)

    def exchange(
        self, letters: Mapping[K, Letter], *, until: float | None = None
    ) -> Iterator[tuple[K, Answer]]:
        """Sends all letters, and yields the answers as they come; whoever is late has trouble for one."""
        until = self.until() if until is None else until
        unsent, waiting = deque(letters), dict[str, K]()
        while unsent or waiting:
            late = until is not None and time.monotonic() > until  # before the look: it may take a while
            room = len(unsent) if self.window is None else self.window - len(waiting)
            if not late and room > 0 and unsent:
                batch = [unsent.popleft() for _ in range(min(room, len(unsent)))]
                sent = self._send({key: letters[key] for key in batch}, until)
                waiting |= sent
                for key in set(batch) - set(sent.values()):
                    yield key, Answer(None, "the message could not be delivered")
            for reply in self.grid.pull_messages(list(waiting)):
                key = waiting.pop(reply.metadata.reply_to_message_id)
                yield key, self._opened(reply, letters[key].node)
            self.alive()
            if late:
                break
            if waiting:
                time.sleep(self.poll)
        for key in (*waiting.values(), *unsent):
            yield key, self._late()

    def _send(self, letters: Mapping[K, Letter], until: float | None) -> dict[str, K]:
        """Sends some letters together; returns whom each message that was accepted went to."""
        left = None if until is None else max(1.0, until - time.monotonic())
        messages = {
            key: Message(letter.content, letter.node, letter.type, ttl=left)
            for key, letter in letters.items()
        }
        accepted = set(self.grid.push_messages(list(messages.values())))
        sent = {}
        for key, message in messages.items():
            if message.metadata.message_id in accepted:
                sent[message.metadata.message_id] = key
                self.traffic.down += wire_bytes(letters[key].content)
        return sent

    def until(self) -> float | None:
        """When a phase that begins now is over."""
        return None if self.deadline is None else time.monotonic() + self.deadline

    def _late(self) -> Answer:
        within = "" if self.deadline is None else f" within {self.deadline:g} s"
        return Answer(None, f"no answer{within}")

    def _opened(self, reply: Message, node: NodeId) -> Answer:
        if reply.has_error() and reply.error.code in EXPIRED:
            return self._late()
        if reply.has_error():
            return Answer(None, " ".join((reply.error.reason or "").split()) or f"error {reply.error.code}")
        if reply.metadata.src_node_id != node:
            return Answer(None, f"the answer came from node {reply.metadata.src_node_id}")
        self.traffic.up += wire_bytes(reply.content)
        return Answer(reply.content)
