"""The nodes of a run: greeted when they are new, waited for at the start, looked after in every round."""

from __future__ import annotations

import time
from collections.abc import Callable

from ipfl.engines.flower.client_app import HELLO
from ipfl.engines.flower.directory import Directory, Greeting, NodeId, RefusedError
from ipfl.engines.flower.messages import MalformedError, message_type, pack, text_array, unpack
from ipfl.engines.flower.plan import Plan
from ipfl.engines.flower.post import Answer, Letter, Post
from ipfl.errors import InputError

LOOK = 0.2
"""Seconds between looks for nodes that join."""


class Nodes:
    """Whom the server can ask, and how to reach them."""

    def __init__(self, post: Post, directory: Directory):
        self.post, self.directory = post, directory
        self.events: list[str] = []
        self._since: dict[NodeId, str] = {}
        """When each node connected, as the server's clock has it."""

    def greet(self, plan: Plan) -> None:
        """Says hello to nodes that are new or were started again, and forgets those that are gone."""
        infos = list(self.post.grid.get_nodes())
        online = {info.node_id: bytes(info.public_key) for info in infos}
        since = {info.node_id: str(info.last_activated_at) for info in infos}
        # A node that was refused may have been mended, one that was taken in may now hold other data.
        self.directory.leave(node for node, when in self._since.items() if since.get(node) != when)
        self._since = since
        key, text = text_array(plan.text())
        hello = pack({"plan": key}, {key: text})
        letters = {node: Letter(node, message_type(HELLO), hello) for node in self.directory.unknown(online)}
        for node, answer in self.post.exchange(letters):
            self._met(node, answer, online[node])

    def _met(self, node: NodeId, answer: Answer, key: bytes) -> None:
        if answer.content is None:
            self.events.append(f"node {node} did not say hello: {answer.trouble}")
            return
        try:
            head, _ = unpack(answer.content)
            if "error" in head:
                raise RefusedError(f"node {node} cannot take part: {head['error']}")
            self.directory.admit(node, Greeting.of(head), key)
        except (MalformedError, RefusedError) as error:
            self.directory.refused.add(node)
            said = str(error) if isinstance(error, RefusedError) else f"node {node} sent nonsense: {error}"
            self.events.append(said)

    def gather(
        self, needed: int, wait: float, plan: Plan, say: Callable[[str], object], *, picky: bool = False
    ) -> None:
        """Waits until enough clients have a node.

        Args:
            needed: Number of clients.
            wait: Seconds until it gives up.
            plan: What nodes are told.
            say: Shows the countdown.
            picky: Give up at the first node that cannot take part.

        Raises:
            InputError: Too few came, or those that came cannot take part as they are.
        """
        until, shown = time.monotonic() + wait, None
        while True:
            self.greet(plan)
            if self.directory.refused and picky:
                raise InputError("; ".join(self.events))
            here = len(self.directory.clients)
            if here >= needed:
                return
            left = int(until - time.monotonic())
            if left < 0:
                trouble = "".join(f"; {event}" for event in self.events)
                raise InputError(f"{here} of {needed} clients came within {wait:g} s{trouble}")
            if left != shown:
                say(f"waiting for nodes: {here} of {needed} clients are here, {left} s left")
                shown = left
            time.sleep(LOOK)
