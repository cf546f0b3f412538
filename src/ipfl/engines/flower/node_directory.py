"""Which nodes take part in a run, and which node holds which client.

A node says in its first reply which client it is. If keys are registered (`client_of_key`), its key
decides, and what it says must agree; otherwise the first node that claims a client gets it.

What the task looks like (the shape of a sample, the number of classes) comes from the operator, or from what
more than half of the nodes say (`agree_on_task`): one node can neither choose it nor inflate it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from ipfl.core import ClientId, Event
from ipfl.core.replies import InvalidReplyError, as_invalid, printable
from ipfl.engines.flower.message_headers import HELLO, NodeInfo, read_field
from ipfl.engines.flower.messages import HELLO_LIMITS, encode_text, message_type, pack, unpack
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.transport import IncomingReply, NodeId, OutgoingMessage, Transport
from ipfl.errors import InputError

REMIND_SECONDS = 30.0
"""Seconds between two lines about nodes that are still missing."""
T = TypeVar("T", bound=Hashable)


class NodeRefusedError(RuntimeError):
    """A node cannot take part; the text says why."""


def _agree(claims: Iterable[T], what: str, how_to_set: str) -> tuple[T, str]:
    """The answer of more than half of the nodes, and a text of how many they are; empty if all agree.

    Raises:
        InputError: There is no majority.
    """
    counts = Counter(claims)
    value, most = counts.most_common(1)[0]
    if 2 * most <= counts.total():
        said = ", ".join(f"{claim} ({number} nodes)" for claim, number in counts.most_common(5))
        raise InputError(f"the nodes do not agree on {what}: {said}; {how_to_set}")
    return value, "" if most == counts.total() else f"{most} of {counts.total()} nodes say"


def agree_on_task(
    nodes: Iterable[NodeInfo], classes: int | None = None
) -> tuple[tuple[int, ...], int, list[Event]]:
    """Decides shape and classes: by the operator's word, else by what more than half of the nodes say.

    Args:
        nodes: What the nodes say of their data.
        classes: The operator's number of classes; None: the nodes decide.

    Returns:
        Shape of a sample, number of classes, and an event if the nodes did not all say the same.

    Raises:
        InputError: The nodes do not agree, and the operator has not decided.
    """
    known, told = list(nodes), []
    shape, part = _agree((info.input_shape for info in known), "the shape of a sample", "look at their data")
    if part:
        told.append(f"samples have the shape {shape}, as {part}")
    if classes is None:
        claims = (info.classes for info in known if info.input_shape == shape)
        number, part = _agree(claims, "the number of classes", "ipfl deploy run --classes N sets it")
        if part:
            told.append(f"there are {number} classes, as {part}")
    return shape, number if classes is None else classes, [Event("task_decided", None, text) for text in told]


@dataclass
class NodeDirectory:
    """Nodes that take part, and nodes that were refused: who is new is asked, who is gone is forgotten."""

    transport: Transport
    client_of_key: Callable[[bytes], ClientId | None] | None = None
    """The client that a node's authenticated public key is registered for; None: nodes say who they are."""
    input_shape: tuple[int, ...] | None = None
    """Shape of a sample in this run; None: not decided yet, any will do."""
    classes: int | None = None
    model_size: int | None = None
    """Number of classes, and of parameters of the model; None: not known yet."""
    allowed_clients: frozenset[ClientId] | None = None
    """Clients of the run; None: any, as long as the run has not begun."""
    nodes: dict[NodeId, NodeInfo] = field(default_factory=dict)
    refused: set[NodeId] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    _node_of: dict[ClientId, NodeId] = field(default_factory=dict)
    _connected_at: dict[NodeId, str] = field(default_factory=dict)
    """When each node connected, by the clock of Flower's server."""

    def node_of(self, client: ClientId) -> NodeId | None:
        """The node that holds a client; None if it is not connected."""
        return self._node_of.get(client)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Clients whose node is connected, ascending."""
        return tuple(sorted(self._node_of))

    def unknown(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Those of the nodes that were neither added nor refused, ascending."""
        return sorted(node for node in nodes if node not in self.nodes and node not in self.refused)

    def add(self, node: NodeId, info: NodeInfo, key: bytes) -> None:
        """Adds a node.

        Raises:
            NodeRefusedError: Its key is not registered, it claims a client that belongs to another node,
                or its data or model does not fit the run.
        """
        try:
            self._check(node, info, key)
        except NodeRefusedError:
            self.refused.add(node)
            raise
        self.nodes[node] = info
        self._node_of[info.client] = node

    def _check(self, node: NodeId, info: NodeInfo, key: bytes) -> None:
        if self.client_of_key is not None:
            owner = self.client_of_key(key)
            if owner is None:
                raise NodeRefusedError(f"node {node} has a key that is not registered; it is not asked")
            if info.client != owner:
                raise NodeRefusedError(
                    f"node {node} claims client {info.client}, but its key belongs to client {owner}; refused"
                )
        if misfit := self._misfit(info):
            raise NodeRefusedError(f"node {node} {misfit}; refused")
        if self.allowed_clients is not None and info.client not in self.allowed_clients:
            raise NodeRefusedError(
                f"node {node} holds client {info.client}, which is not in this run; refused"
            )
        if (other := self._node_of.get(info.client)) is not None:
            raise NodeRefusedError(
                f"node {node} claims client {info.client}, which is on node {other}; refused"
            )

    def _misfit(self, info: NodeInfo) -> str:
        """What of a node does not fit the run; empty if all does.

        A node that does not know of all classes yet has a smaller model, and makes another one when it does.
        """
        if self.input_shape not in (None, info.input_shape):
            return f"has samples of shape {info.input_shape}, not {self.input_shape}"
        if self.classes is not None and info.classes > self.classes:
            return f"has {info.classes} classes, the run has {self.classes}"
        if self.classes in (None, info.classes) and self.model_size not in (None, info.model_size):
            return f"has a model of {info.model_size} parameters, not {self.model_size}"
        return ""

    def refuse_misfits(self, input_shape: tuple[int, ...], classes: int, model_size: int) -> list[str]:
        """Settles what data and model are like; refuses nodes that do not fit, and returns why."""
        self.input_shape, self.classes, self.model_size = input_shape, classes, model_size
        found = {node: misfit for node, info in self.nodes.items() if (misfit := self._misfit(info))}
        self.remove(found)
        self.refused |= found.keys()
        return [f"node {node} {misfit}; refused" for node, misfit in found.items()]

    def remove(self, nodes: Iterable[NodeId]) -> None:
        """Forgets nodes that are not connected any more; they are new when they come back."""
        for node in set(nodes):
            self.nodes.pop(node, None)
            self.refused.discard(node)
        self._node_of = {client: node for client, node in self._node_of.items() if node in self.nodes}

    def update(self, settings: RunSettings) -> None:
        """Says hello to nodes that are new or were started again, and removes those that are gone."""
        connected = list(self.transport.grid.get_nodes())
        keys = {node.node_id: bytes(node.public_key) for node in connected}
        connected_at = {node.node_id: str(node.last_activated_at) for node in connected}
        # A node that was refused may have been repaired, one that was added may now hold other data.
        self.remove(node for node, when in self._connected_at.items() if connected_at.get(node) != when)
        self._connected_at = connected_at
        key, text = encode_text(settings.to_json())
        hello = pack({"settings": key}, {key: text})
        messages = {node: OutgoingMessage(node, message_type(HELLO), hello) for node in self.unknown(keys)}
        for node, reply in self.transport.exchange(messages):
            self._welcome(node, reply, keys[node])

    def _welcome(self, node: NodeId, reply: IncomingReply, key: bytes) -> None:
        """Adds a node by its reply to `hello`, or notes as an event why not."""
        if reply.content is None:
            text = f"node {node} did not answer its first message: {reply.error}"
            self.events.append(Event("node_silent", None, text))
            return
        try:
            with as_invalid():
                header, _ = unpack(reply.content, HELLO_LIMITS)
                reason = printable(read_field(header, "error", str)) if "error" in header else None
                info = None if reason is not None else NodeInfo.read(header)
            if info is None:
                raise NodeRefusedError(f"node {node} cannot take part: {reason}")
            self.add(node, info, key)
            return
        except NodeRefusedError as error:
            reason = str(error)
        except InvalidReplyError as error:
            reason = f"node {node} sent a malformed message: {error}"
        self.refused.add(node)
        self.events.append(Event("node_refused", None, reason))

    def wait_for_clients(
        self,
        needed: int,
        seconds: float,
        settings: RunSettings,
        print_line: Callable[[str], object],
        *,
        fail_on_refusal: bool = False,
    ) -> None:
        """Waits until the nodes of enough clients are connected.

        Args:
            needed: Number of clients.
            seconds: How long to wait.
            settings: What nodes are sent.
            print_line: Called with one line at first, then with one every `REMIND_SECONDS` at most.
            fail_on_refusal: Raise as soon as one node cannot take part.

        Raises:
            InputError: Too few nodes came, or one of them cannot take part.
        """
        begun, tell_at = time.monotonic(), 0.0
        while True:
            self.update(settings)
            if self.refused and fail_on_refusal:
                raise InputError("; ".join(map(str, self.events)))
            present = len(self.clients)
            if present >= needed:
                return
            waited = time.monotonic() - begun
            if waited > seconds:
                reasons = "".join(f"; {event}" for event in self.events)
                raise InputError(f"{present} of {needed} clients came within {seconds:g} s{reasons}")
            if waited >= tell_at:
                tell_at = waited + REMIND_SECONDS
                print_line(
                    f"waiting for nodes: {present} of {needed} clients are here after {waited:.0f} of "
                    f"{seconds:g} s; start the missing nodes (ipfl deploy node DIR) or see their logs"
                )
            time.sleep(self.transport.poll_seconds)
