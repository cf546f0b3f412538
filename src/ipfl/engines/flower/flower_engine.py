"""The server's side of the Flower engine: an ask becomes messages to nodes, their replies become records.

Works over any Flower grid: that of the simulation, or that of a SuperLink. What the server itself is asked
(its own holdouts, the evaluator's `assess`) never travels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import ASSESS, EVALUATE, ClientFailedError, ClientRunner, Job
from ipfl.core import Ask, Bytes, ClientId, Event, Record, Replies
from ipfl.core.replies import InvalidReplyError, ReplyLimits, as_invalid, printable
from ipfl.data.federated import FederatedData, Parts
from ipfl.data.target_kinds import Target
from ipfl.engines import ATTEMPTS_FILE, TellAccount
from ipfl.engines.flower.message_headers import AskHeader, ReplyHeader, read_field
from ipfl.engines.flower.messages import (
    Encoder,
    MalformedError,
    decode,
    encode_text,
    message_type,
    pack,
    unpack,
)
from ipfl.engines.flower.node_directory import NodeDirectory
from ipfl.engines.flower.node_memory import Attempts, CacheIndex, DataDescription
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.transport import IncomingReply, NodeId, OutgoingMessage
from ipfl.errors import InputError
from ipfl.training.sgd import one_thread
from ipfl.training.task import Task

MAX_EVENT_TEXT = 2000
"""Characters of an event about a client: a traceback has some."""
UNKNOWN_SAMPLES = {"train": 1, "probe": 1, "goal": 1, "test": 1}
"""Counts of a client that has not said any."""


class MissingArraysError(Exception):
    """The node does not have all arrays that it was referred to."""


class RemoteData(FederatedData):
    """`FederatedData` without a single sample: all samples are on the nodes.

    Args:
        description: Which clients take part, and what their samples look like.
        samples: Number of samples per part, as far as the clients have said.
    """

    name = "remote"
    partition = "own"

    def __init__(
        self,
        description: DataDescription,
        samples: Mapping[ClientId, Mapping[str, int]] | None = None,
    ):
        self.clients, self.input_shape = description.clients, description.input_shape
        self.target = Target("classes", description.classes)
        self.samples = samples or {}

    def parts(self, client: int, round: int = 0) -> Parts:
        """Always raises: the data stays on the node."""
        raise LookupError(f"the data of client {client} is on its node")

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part."""
        return self.samples.get(client, UNKNOWN_SAMPLES)


@dataclass
class FlowerEngine:
    """Asks clients that are on Flower nodes.

    Args:
        nodes: The nodes; those that are needed have been added.
        task: The server's view of the data, and the model.
        settings: What the nodes are sent first.
        memory: Folder of the run for what clients remember; None: it is lost when the engine is closed.
        simulated: Whether the nodes are in this process: they keep what clients remember in `memory`, where
            other engines find it, and an error of a client ends the run, as on the local engine. Other nodes
            have folders of their own, one for each run, and a client that fails is left out of the phase.
        client_deadline: Seconds for a client's reply (`clients.deadline`); None: the transport's deadline.
            The evaluator waits for everyone, as on the local engine, up to the transport's deadline.
        wait_seconds: How long to wait for a node if none is connected.
        print_line: Called with each line of the countdown while it waits.
        tell_account: What the ledger says of a client's account; None: nodes are told nothing.
        resources: Closed with the engine.
    """

    nodes: NodeDirectory
    task: Task
    settings: RunSettings
    memory: Path | None
    simulated: bool = False
    client_deadline: float | None = None
    wait_seconds: float = 0.0
    print_line: Callable[[str], object] = print
    tell_account: TellAccount | None = None
    resources: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.events = self.nodes.events
        folder = self.memory or Path(self.resources.enter_context(TemporaryDirectory(prefix="ipfl-")))
        train, seed = self.settings.train, self.settings.seed
        self.runner = ClientRunner(self.task, self.settings.method, train, seed, ClientMemory(folder))
        self._settings_digest, self._settings_text = encode_text(self.settings.to_json())
        self._cache_index: dict[tuple[ClientId, NodeId], CacheIndex] = {}
        self._told: dict[tuple[ClientId, NodeId], int] = {}
        """Round of the last statement that a node has taken."""

    @property
    def traffic(self) -> Bytes | None:
        """Bytes that travelled."""
        return self.nodes.transport.traffic

    @traffic.setter
    def traffic(self, traffic: Bytes | None) -> None:
        self.nodes.transport.traffic = traffic or Bytes()

    @cached_property
    def attempts(self) -> Attempts:
        """Opened when it is first needed: by then it is clear whether the folder holds a run to resume."""
        path = self.memory.parent / ATTEMPTS_FILE if self.memory else None
        data = DataDescription.of(self.task.data)
        return Attempts.open(path, data, memory_on_nodes=not self.simulated)

    def present(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Adds nodes that joined; returns the clients whose node is connected."""
        self.nodes.wait_for_clients(1, self.wait_seconds, self.settings, self.print_line)
        return tuple(client for client in clients if self.nodes.node_of(client) is not None)

    def ask(self, ask: Ask, round: int) -> Replies:
        """Runs one phase.

        A client that is late, fails or sends a malformed reply is left out, and an event says why.
        """
        replies: dict[ClientId, Record] = {}
        remote: dict[ClientId, Record] = {}
        for client in sorted(ask.to):
            if client < 0 or ask.action == ASSESS:
                with one_thread():
                    replies[client] = self.runner.run(
                        Job(ask.action, round, client, ask.to[client].read_only())
                    )
            elif self.nodes.node_of(client) is None:
                self._leave_out("not_connected", client, ask.action, "its node is not connected")
            else:
                remote[client] = ask.to[client]
        replies |= self._exchange(ask, round, remote)
        return dict(sorted(replies.items()))

    def _exchange(self, ask: Ask, round: int, records: Mapping[ClientId, Record]) -> dict[ClientId, Record]:
        """Sends each client the arrays that it does not have, or all if it replies that some are missing."""
        replies: dict[ClientId, Record] = {}
        action = ask.action
        encoder = Encoder()
        deadline = None if action == EVALUATE else self.client_deadline
        remaining = list(records)
        for send_all in (False, True):
            statements = {client: self._statement(client, send_all) for client in remaining}
            messages = {
                client: self._message(
                    action, round, client, records[client], encoder, send_all, statements[client]
                )
                for client in remaining
            }
            remaining = []
            for client, reply in self.nodes.transport.exchange(messages, deadline):
                if reply.is_late:
                    self._leave_out("overdue", client, action, reply.error)
                    continue
                try:
                    limits = ask.expects.limits(records[client])
                    replies[client] = _read_reply(client, reply, limits)
                    digests, _ = encoder.encode(records[client])
                    self._index_of(client).add_ask({self._settings_digest, *digests.values()})
                    if statement := statements.get(client):
                        self._told[client, self._node_of(client)] = int(statement["round"])
                except MissingArraysError:
                    remaining.append(client)
                except InvalidReplyError as error:
                    replies.pop(client, None)
                    self._leave_out("malformed_reply", client, action, f"its reply is malformed: {error}")
                except (InputError, ClientFailedError) as error:
                    self._raise_or_leave_out(client, action, error)
        for client in remaining:
            self._leave_out("client_failed", client, action, "it does not keep the arrays that it is sent")
        return replies

    def _statement(self, client: ClientId, send_all: bool) -> Mapping[str, Any] | None:
        """What a client's node is told of its account: what is new, or all."""
        if self.tell_account is None or self.simulated:
            return None
        known = self._told.get((client, self._node_of(client)))
        return self.tell_account(client, None if send_all else known)

    def _message(
        self,
        action: str,
        round: int,
        client: ClientId,
        record: Record,
        encoder: Encoder,
        send_all: bool,
        statement: Mapping[str, Any] | None,
    ) -> OutgoingMessage:
        digests, arrays = encoder.encode(record)
        index = self._index_of(client)
        header = AskHeader(
            client=client,
            round=round,
            committed=self.runner.memory.committed,
            run_id="" if self.simulated else self.attempts.run_id,
            first_rounds=tuple(self.attempts.first_rounds),
            settings=self._settings_digest,
            model_size=self.runner.network.size,
            params=digests,
            facts=dict(record.facts),
            statement=statement,
        )
        named = {self._settings_digest: self._settings_text, **arrays}
        sent = {key: array for key, array in named.items() if send_all or key not in index}
        return OutgoingMessage(self._node_of(client), message_type(action), pack(header.to_header(), sent))

    def _node_of(self, client: ClientId) -> NodeId:
        node = self.nodes.node_of(client)
        assert node is not None, "messages go only to clients whose node is connected"
        return node

    def _index_of(self, client: ClientId) -> CacheIndex:
        """What the client's node has in its cache; nothing if the client moved to another node."""
        return self._cache_index.setdefault((client, self._node_of(client)), CacheIndex())

    def _raise_or_leave_out(
        self, client: ClientId, action: str, error: InputError | ClientFailedError
    ) -> None:
        if not self.simulated:
            self._leave_out("client_failed", client, action, str(error))
        elif isinstance(error, InputError):
            raise error
        else:
            raise ClientFailedError(f"client {client} failed:\n{error}") from error

    def _leave_out(self, kind: str, client: ClientId, action: str, reason: str) -> None:
        text = f"did not answer {action!r}: {printable(reason, MAX_EVENT_TEXT)}"
        self.events.append(Event(kind, client, text))

    def commit(self, round: int) -> None:
        """Every later message carries the number of this round."""
        self.runner.memory.committed = round

    def roll_back(self, round: int) -> None:
        """Begins another attempt; clients forget when the next message reaches them."""
        self.attempts.begin_attempt(round + 1)
        self.runner.memory.forget_after(round)

    def close(self) -> None:
        """Closes what belongs to this engine alone."""
        self.resources.close()


def _read_reply(client: ClientId, reply: IncomingReply, limits: ReplyLimits) -> Record:
    """A client's record.

    Raises:
        MissingArraysError: The node must be sent all arrays.
        InputError: The node cannot do what it is asked with its data and settings.
        ClientFailedError: The client's code raised, or the reply did not arrive.
        InvalidReplyError: The reply does not follow the protocol, or cannot be read for any other reason.
    """
    if reply.content is None:
        raise ClientFailedError(reply.error)
    with as_invalid():
        header, arrays = unpack(reply.content, limits)
        problem = read_field(header, "error", str) if "error" in header else None
        record = None
        if problem is None and "missing" not in header:
            content = ReplyHeader.read(header)
            if content.client != client:
                raise MalformedError(f"it is a reply of client {content.client}")
            record = decode(content.params, arrays, content.facts)
    if problem is not None:
        raise (InputError if header.get("is_input") is True else ClientFailedError)(problem)
    if record is None:
        raise MissingArraysError
    return record
