"""The ClientApp: takes a message, lets the `Host` of this node work, answers.

`app` is what `[tool.flwr.app.components]` names. With a loader and a model of your own it is
`NodeApp(loader, model)`; see docs/flower.md.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import ipfl.engines.flower  # noqa: F401  (no telemetry)
from ipfl.client.network import Factory
from ipfl.client.runner import Host
from ipfl.core import ClientId, Record
from ipfl.engines.flower.attempts import NodeMemory, StaleError
from ipfl.engines.flower.messages import (
    Blob,
    Encoder,
    Head,
    MalformedError,
    action_of,
    decode,
    pack,
    take,
    take_names,
    unpack,
)
from ipfl.engines.flower.node import Loader, build_host, has_own_data, residents
from ipfl.engines.flower.plan import Plan
from ipfl.engines.flower.received import Received
from ipfl.engines.local import one_thread
from ipfl.errors import InputError

HELLO = "hello"
HOSTS_AT_ONCE = 64
"""Nodes with own data that one process keeps in memory: in a simulation it plays them all in turn."""
_hosts: dict[tuple[str, int | None], Host] = {}
"""Hosts of this process. Here and not on the app: Ray makes a fresh copy of the app for each message."""


@dataclass(frozen=True)
class Places:
    """Folders of a node."""

    memory: Path
    received: Path

    @classmethod
    def of(cls, context: Context) -> Places:
        """Where the node was told to keep things, or a folder of its own in the home directory."""
        said = context.node_config.get("memory")
        root = Path(str(said)) if said else Path.home() / ".ipfl" / "nodes" / str(context.node_id)
        return cls(root, root / "received")


class NodeApp(ClientApp):
    """A ClientApp that plays the client side of any method.

    Args:
        loader: Your own data: called with the node's Context, returns (x, y), a dict with `train` and `test`,
            or a map-style torch data set. None: the node's file, or its part of the config's task.
        model: Your own model: a callable (input_shape, classes) → `nn.Module`. None: the config's.
        places: Folders, for simulated nodes; None: from the node's own config.
        frank: Whether errors go to the server with their traceback; a deployed node keeps it to itself.
    """

    def __init__(
        self,
        loader: Loader | None = None,
        model: Factory | None = None,
        *,
        places: Places | None = None,
        frank: bool = False,
    ):
        super().__init__()
        self.loader, self.model, self.places, self.frank = loader, model, places, frank

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers; whatever goes wrong is an answer too."""
        try:
            with one_thread():
                content = self._answer(message, context)
        except StaleError as error:
            content = pack({"error": str(error), "kind": "stale"}, {})
        except InputError as error:
            content = pack({"error": str(error), "kind": "input"}, {})
        except Exception as error:  # a client's code may raise anything; the server must hear of it
            traceback.print_exc()
            full = (
                "".join(traceback.format_exception(error))
                if self.frank
                else f"{type(error).__name__}: {error}"
            )
            content = pack({"error": full, "kind": "failed"}, {})
        return Message(content, reply_to=message)

    def _answer(self, message: Message, context: Context) -> RecordDict:
        head, sent = unpack(message.content)
        action = action_of(message.metadata.message_type)
        places = self.places or Places.of(context)
        if action == HELLO:
            return self._hello(take(head, "plan", str), sent, context, places)
        client = take(head, "client", int)
        names, wanted = take_names(head), take(head, "plan", str)
        received = Received(places.received / str(client))
        named = {wanted, *names.values()}
        blobs = sent | received.find(named - set(sent))
        if missing := sorted(named - set(blobs)):
            return pack({"missing": missing}, {})
        host = self._host(wanted, blobs[wanted], context, places)
        if client not in residents(host, context):
            raise InputError(f"client {client} does not live on this node")
        record = decode(names, blobs, take(head, "facts", dict))
        reply = _play(host, places, client, action, head, record)
        received.keep({key: blobs[key] for key in named})
        names, arrays = Encoder(half=take(head, "half", bool))(reply)
        return pack({"client": client, "params": names, "facts": dict(reply.facts)}, arrays)

    def _hello(self, wanted: str, sent: dict[str, Blob], context: Context, places: Places) -> RecordDict:
        """Who lives here, and what their data looks like: shape, classes and counts."""
        if wanted not in sent:
            raise MalformedError("a first message must bring the settings")
        host = self._host(wanted, sent[wanted], context, places)
        clients, data = residents(host, context), host.task.data
        head = {
            "clients": list(clients),
            "size": host.network.size,
            "classes": data.classes,
            "input_shape": list(data.input_shape),
            "sizes": {str(client): dict(data.sizes(client)) for client in clients},
        }
        return pack(head, {})

    def _host(self, wanted: str, plan: Blob, context: Context, places: Places) -> Host:
        key = (wanted, context.node_id if has_own_data(context, self.loader) else None)
        if key not in _hosts:
            while len(_hosts) >= HOSTS_AT_ONCE:
                del _hosts[next(iter(_hosts))]
            settings = Plan.of(plan.tobytes().decode())
            _hosts[key] = build_host(settings, context, places.memory, self.loader, self.model)
        return _hosts[key]


def _play(host: Host, places: Places, client: ClientId, action: str, head: Head, record: Record) -> Record:
    """One phase of one client, with the memory of this run and attempt."""
    size = take(head, "size", int)
    if size != host.network.size:
        raise InputError(f"the model here has {host.network.size} parameters, the server's has {size}")
    memory = NodeMemory(places.memory / take(head, "run", str))
    memory.committed = take(head, "committed", int)
    memory.enter(client, take(head, "firsts", list))
    host.memory = memory
    return host.run(action, take(head, "round", int), client, record)


app = NodeApp()
