"""Sends messages to nodes and waits for the replies, each up to a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ipfl.core import Bytes
from ipfl.core.replies import printable
from ipfl.engines.flower.flwr_internals import EXPIRED_ERROR_CODES
from ipfl.engines.flower.messages import payload_bytes

K = TypeVar("K")
NodeId = int
MIN_TTL_SECONDS = 1.0
"""Shortest lifetime that a message is given; the deadline itself may be shorter."""
MAX_POLL_FACTOR = 4
"""The longest pause between two looks for replies, in multiples of the first: a look at a SuperLink takes
15 ms of a processor for each reply that is not there yet."""


@dataclass(frozen=True)
class OutgoingMessage:
    """What one node is to be sent."""

    node: NodeId
    type: str
    content: RecordDict


@dataclass(frozen=True)
class IncomingReply:
    """What came back: content, or an error that says why there is none."""

    content: RecordDict | None
    error: str = ""
    is_late: bool = False
    """Whether there is no content because the deadline is over."""


@dataclass
class Transport:
    """Exchanges messages with nodes over a Flower grid.

    Args:
        grid: Flower's connection to the nodes.
        deadline: Seconds for a reply, from the sending of its message; None: no limit.
        poll_seconds: Seconds between two looks for replies; up to four times as many after a while.
    """

    grid: Grid
    deadline: float | None
    poll_seconds: float
    traffic: Bytes = field(default_factory=Bytes)

    def exchange(
        self, messages: Mapping[K, OutgoingMessage], deadline: float | None = None
    ) -> Iterator[tuple[K, IncomingReply]]:
        """Sends all messages and yields the replies as they come, one for each message.

        Args:
            messages: What is sent, under keys of the caller's choice.
            deadline: Seconds for a reply to these messages; None: the transport's own.
        """
        limit = self.deadline if deadline is None else deadline
        waiting = self._send(messages, limit)
        begun = time.monotonic()
        for key in set(messages) - set(waiting.values()):
            yield key, IncomingReply(None, "the message could not be delivered")
        while waiting:
            looked_at = time.monotonic()  # before the look, which may take a while
            for message_id in list(waiting):
                reply = self._pull(message_id, messages[waiting[message_id]].node, limit)
                if reply is not None:
                    yield waiting.pop(message_id), reply
            if limit is not None and looked_at > begun + limit:
                for message_id in list(waiting):
                    yield waiting.pop(message_id), _late_reply(limit)
            if waiting:
                waited = time.monotonic() - begun
                pause = min(max(self.poll_seconds, waited / 8), MAX_POLL_FACTOR * self.poll_seconds)
                time.sleep(pause if limit is None or waited + pause < limit else self.poll_seconds)

    def _send(self, messages: Mapping[K, OutgoingMessage], limit: float | None) -> dict[str, K]:
        """Sends some messages together; returns the key of each message that was accepted, by its id."""
        ttl = None if limit is None else max(MIN_TTL_SECONDS, limit)
        flower_messages = {
            key: Message(message.content, message.node, message.type, ttl=ttl)
            for key, message in messages.items()
        }
        accepted = set(self.grid.push_messages(list(flower_messages.values())))
        sent = {}
        for key, message in flower_messages.items():
            if message.metadata.message_id in accepted:
                sent[message.metadata.message_id] = key
                self.traffic.down += payload_bytes(messages[key].content)
        return sent

    def _pull(self, message_id: str, node: NodeId, limit: float | None) -> IncomingReply | None:
        """The reply to one message; None: there is none yet.

        Each is pulled by itself: what is wrong with one must not take the others with it. Flower parses a
        reply while it is pulled, and raises whatever it comes upon.
        """
        try:
            for reply in self.grid.pull_messages([message_id]):
                if reply.metadata.reply_to_message_id == message_id:
                    return self._read(reply, node, limit)
        except Exception as error:
            return IncomingReply(
                None, printable(f"its reply cannot be read: {type(error).__name__}: {error}")
            )
        return None

    def _read(self, reply: Message, node: NodeId, limit: float | None) -> IncomingReply:
        if reply.has_error() and reply.error.code in EXPIRED_ERROR_CODES:
            return _late_reply(limit)
        if reply.has_error():
            reason = printable(reply.error.reason or "")
            return IncomingReply(None, reason or f"error {reply.error.code}")
        if reply.metadata.src_node_id != node:
            return IncomingReply(None, f"the reply came from node {reply.metadata.src_node_id}")
        self.traffic.up += payload_bytes(reply.content)
        return IncomingReply(reply.content)


def _late_reply(limit: float | None) -> IncomingReply:
    within = "" if limit is None else f" within {limit:g} s"
    return IncomingReply(None, f"no reply{within}", is_late=True)
