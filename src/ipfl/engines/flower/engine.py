"""The Flower engine: an ask becomes messages to nodes, their answers become records, and nothing else.

Works over any Flower grid: the simulation's in memory, or a SuperLink's. What the server itself is asked (its
own holdouts, the evaluator's `assess`) never travels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import ASSESS, Host
from ipfl.client.task import Task
from ipfl.core import Ask, Bytes, ClientId, Record, Replies
from ipfl.engines.flower.attempts import Attempts
from ipfl.engines.flower.directory import NodeId
from ipfl.engines.flower.messages import (
    Encoder,
    MalformedError,
    decode,
    message_type,
    pack,
    take,
    take_names,
    text_array,
    unpack,
)
from ipfl.engines.flower.nodes import Nodes
from ipfl.engines.flower.plan import Plan
from ipfl.engines.flower.post import Answer, Letter
from ipfl.engines.flower.received import Held
from ipfl.engines.flower.remote import View
from ipfl.engines.local import ClientFailedError, one_thread, read_only
from ipfl.errors import InputError
from ipfl.runs.folder import ATTEMPTS


class MissingError(Exception):
    """The node does not hold what it was referred to."""


@dataclass
class FlowerEngine:
    """Asks clients that live on Flower nodes.

    Args:
        nodes: The way to them; those that are needed have been greeted.
        task: The server's view of the data, and the model.
        plan: What the nodes are told.
        memory: Folder of the run for what clients remember; None: nothing outlives the engine.
        named: Whether nodes keep memory under the run's name. Simulated ones keep it in `memory` itself.
        half: Whether vectors travel as float16.
        strict: Whether trouble with a client ends the run, as on the local engine, or makes it absent.
        wait: Seconds to wait for a node where none is left.
        say: Shows the countdown while it waits.
        closing: Closed with the engine.
    """

    nodes: Nodes
    task: Task
    plan: Plan
    memory: Path | None
    named: bool = True
    half: bool = False
    strict: bool = False
    wait: float = 0.0
    say: Callable[[str], object] = print
    closing: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.events = self.nodes.events
        folder = self.memory or Path(self.closing.enter_context(TemporaryDirectory(prefix="ipfl-")))
        train, seed = self.plan.train, self.plan.seed
        self.host = Host(self.task, self.plan.method, train, seed, ClientMemory(folder))
        self._plan_key, self._plan_text = text_array(self.plan.text())
        self._held: dict[tuple[ClientId, NodeId], Held] = {}

    @property
    def traffic(self) -> Bytes | None:
        """What travelled."""
        return self.nodes.post.traffic

    @traffic.setter
    def traffic(self, fresh: Bytes | None) -> None:
        self.nodes.post.traffic = fresh or Bytes()

    @cached_property
    def attempts(self) -> Attempts:
        """Opened at the first need, when it is clear whether the run's folder holds a run that goes on."""
        path = self.memory.parent / ATTEMPTS if self.memory else None
        return Attempts.open(path, View.of(self.task.data), deployed=self.named)

    def present(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Greets nodes that joined; returns the clients whose node is there."""
        self.nodes.gather(1, self.wait, self.plan, self.say)
        return tuple(client for client in clients if self.nodes.directory.home(client) is not None)

    def ask(self, ask: Ask, round: int) -> Replies:
        """Runs one phase; whoever is late, fails or sends nonsense is absent, and an event says why."""
        replies: dict[ClientId, Record] = {}
        away: dict[ClientId, Record] = {}
        for client in sorted(ask.to):
            if client < 0 or ask.action == ASSESS:
                with one_thread():
                    replies[client] = self.host.run(ask.action, round, client, read_only(ask.to[client]))
            elif self.nodes.directory.home(client) is None:
                self._trouble(client, ask.action, "its node is not connected")
            else:
                away[client] = ask.to[client]
        replies |= self._exchange(ask.action, round, away)
        return dict(sorted(replies.items()))

    def _exchange(self, action: str, round: int, to: Mapping[ClientId, Record]) -> dict[ClientId, Record]:
        """Sends each client what it does not hold; whoever misses something is sent everything."""
        replies: dict[ClientId, Record] = {}
        encode, until = Encoder(half=self.half), self.nodes.post.until()
        asked, whole = list(to), False
        while asked:
            letters = {
                client: self._letter(action, round, client, to[client], encode, whole) for client in asked
            }
            asked = []
            for client, answer in self.nodes.post.exchange(letters, until=until):
                try:
                    replies[client] = self._read(client, answer)
                    names, _ = encode(to[client])
                    self._held_by(client).note({self._plan_key, *names.values()})
                except MissingError:
                    asked.append(client)
                except MalformedError as error:
                    self._trouble(client, action, f"its answer makes no sense: {error}")
                except InputError as error:
                    if self.strict:
                        raise
                    self._trouble(client, action, str(error))
                except ClientFailedError as error:
                    if self.strict:
                        raise ClientFailedError(f"client {client} failed:\n{error}") from error
                    self._trouble(client, action, str(error))
            if whole:
                break
            whole = True
        for client in asked:
            self._trouble(client, action, "it does not keep what it is sent")
        return replies

    def _letter(
        self, action: str, round: int, client: ClientId, record: Record, encode: Encoder, whole: bool
    ) -> Letter:
        names, arrays = encode(record)
        held = self._held_by(client)
        arrays = {
            key: array
            for key, array in {self._plan_key: self._plan_text, **arrays}.items()
            if whole or key not in held
        }
        head = {
            "client": client,
            "round": round,
            "committed": self.host.memory.committed,
            "run": self.attempts.run if self.named else "",
            "firsts": self.attempts.firsts,
            "plan": self._plan_key,
            "size": self.host.network.size,
            "half": self.half,
            "params": names,
            "facts": dict(record.facts),
        }
        return Letter(self._home(client), message_type(action), pack(head, arrays))

    def _home(self, client: ClientId) -> NodeId:
        node = self.nodes.directory.home(client)
        assert node is not None, "only clients with a node are written to"
        return node

    def _held_by(self, client: ClientId) -> Held:
        return self._held.setdefault((client, self._home(client)), Held())

    def _read(self, client: ClientId, answer: Answer) -> Record:
        """A client's record, or why there is none."""
        if answer.content is None:
            raise ClientFailedError(answer.trouble)
        head, blobs = unpack(answer.content)
        if "missing" in head:
            raise MissingError
        if "error" in head:
            text = take(head, "error", str)
            raise InputError(text) if head.get("kind") == "input" else ClientFailedError(text)
        if take(head, "client", int) != client:
            raise MalformedError(f"it speaks for client {head['client']}")
        return decode(take_names(head), blobs, take(head, "facts", dict))

    def _trouble(self, client: ClientId, action: str, why: str) -> None:
        self.events.append(f"client {client} did not answer {action!r}: {' '.join(why.split())}")

    def committed(self, round: int) -> None:
        """Every later message says so."""
        self.host.memory.committed = round

    def rewind(self, round: int) -> None:
        """Begins another attempt; clients forget when they next hear of it."""
        self.attempts.again(round + 1)
        self.host.memory.forget_after(round)

    def close(self) -> None:
        """Ends what belongs to this engine alone."""
        self.closing.close()
