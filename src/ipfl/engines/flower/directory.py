"""Who lives where: which node answers for which client.

A node says in its first answer whose data it holds. Where keys are registered (`accounts`), its key decides,
and what it says must agree; elsewhere the first node that claims a client has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ipfl.core import ClientId
from ipfl.engines.flower.messages import Head, MalformedError, take

NodeId = int
Accounts = Callable[[bytes], ClientId | None]
"""The client that a node's authenticated public key is registered for; None for a key nobody knows."""


class RefusedError(RuntimeError):
    """A node is not taken in; the text says why."""


@dataclass(frozen=True)
class Greeting:
    """What a node says of itself."""

    clients: tuple[ClientId, ...]
    size: int
    classes: int
    input_shape: tuple[int, ...]
    sizes: Mapping[ClientId, Mapping[str, int]]

    @classmethod
    def of(cls, head: Head) -> Greeting:
        """Reads the answer to `hello`."""
        clients = take(head, "clients", list)
        shape = take(head, "input_shape", list)
        if not all(type(number) is int and number >= 0 for number in (*clients, *shape)):
            raise MalformedError("clients and shape must be numbers from 0 on")
        sizes = {}
        for client, said in take(head, "sizes", dict).items():
            sizes[int(client)] = {part: max(1, int(take(said, part, int))) for part in said}
        return cls(tuple(clients), take(head, "size", int), take(head, "classes", int), tuple(shape), sizes)


@dataclass
class Directory:
    """Nodes that were taken in, and those that were not."""

    accounts: Accounts | None = None
    shape: tuple[int, ...] | None = None
    """Shape of a point in this run; None: that of the first node."""
    size: int | None = None
    """Number of parameters of the model; None: not known yet."""
    members: frozenset[ClientId] | None = None
    """Clients of the run; None: whoever comes before it begins."""
    nodes: dict[NodeId, Greeting] = field(default_factory=dict)
    refused: set[NodeId] = field(default_factory=set)
    _home: dict[ClientId, NodeId] = field(default_factory=dict)

    def home(self, client: ClientId) -> NodeId | None:
        """The node of a client."""
        return self._home.get(client)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Clients whose node is there, ascending."""
        return tuple(sorted(self._home))

    def unknown(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Those of the nodes that have not been greeted, ascending."""
        return sorted(node for node in nodes if node not in self.nodes and node not in self.refused)

    def admit(self, node: NodeId, greeting: Greeting, key: bytes) -> None:
        """Takes a node in.

        Raises:
            RefusedError: Its key is not registered, or it claims a client that is not its own.
        """
        try:
            self._check(node, greeting, key)
        except RefusedError:
            self.refused.add(node)
            raise
        self.shape = greeting.input_shape
        self.nodes[node] = greeting
        self._home |= dict.fromkeys(greeting.clients, node)

    def _check(self, node: NodeId, greeting: Greeting, key: bytes) -> None:
        if self.accounts is not None:
            owner = self.accounts(key)
            if owner is None:
                raise RefusedError(f"node {node} has a key that is not registered; it is not asked")
            if greeting.clients != (owner,):
                claims = " and ".join(map(str, greeting.clients))
                raise RefusedError(
                    f"node {node} claims client {claims}, but its key belongs to client {owner}; refused"
                )
        if self.shape not in (None, greeting.input_shape):
            raise RefusedError(
                f"node {node} has points of shape {greeting.input_shape}, not {self.shape}; refused"
            )
        if self.size not in (None, greeting.size):
            raise RefusedError(
                f"node {node} has a model of {greeting.size} parameters, not {self.size}; refused"
            )
        for client in greeting.clients:
            if self.members is not None and client not in self.members:
                raise RefusedError(f"node {node} holds client {client}, which is not in this run; refused")
            if client in self._home:
                raise RefusedError(
                    f"node {node} claims client {client}, which lives on node {self._home[client]}; refused"
                )

    def turn_away(self, node: NodeId) -> None:
        """Refuses a node that was taken in."""
        self.leave([node])
        self.refused.add(node)

    def leave(self, gone: Iterable[NodeId]) -> None:
        """Forgets nodes that are not connected any more; they are greeted again when they come back."""
        for node in set(gone):
            self.nodes.pop(node, None)
            self.refused.discard(node)
        self._home = {client: node for client, node in self._home.items() if node in self.nodes}
