"""The client's side of the Flower engine: the ClientApp of a node, and the node's own data.

`app` is what `[tool.flwr.app.components]` names. With a loader and a model of your own it is
`NodeApp(loader, model)`; see docs/flower.md.

A node's data comes from the user's own loader, from the file that the node was started with (`--node-config
'data="mine.npz"'`), or, without either, from the config: a simulated node rebuilds its part of the task.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import ipfl.engines.flower  # noqa: F401 (switches telemetry off)
from ipfl.client.runner import ClientRunner, Job, runner_under
from ipfl.config.train_section import PrivacyConfig
from ipfl.core import ClientId
from ipfl.data.federated import FederatedData, Parts
from ipfl.data.own.node_data import check_points_apart, read_node_data
from ipfl.data.own.own_clients import from_clients
from ipfl.engines.flower.account_statements import keep_statement
from ipfl.engines.flower.message_headers import HELLO, AskHeader, NodeInfo, ReplyHeader, read_field
from ipfl.engines.flower.messages import (
    Encoder,
    MalformedError,
    NumpyArray,
    action_of,
    decode,
    pack,
    pack_error,
    pack_missing,
    unpack,
)
from ipfl.engines.flower.node_limits import NodeLimits
from ipfl.engines.flower.node_memory import ArrayCache, NodeMemory
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.errors import InputError
from ipfl.training.architectures import Factory, model_factory
from ipfl.training.sgd import one_thread
from ipfl.training.task import Task

SEEDED_NOISE = "seeded-noise"
"""Key of a node's own config, for tests: its noise follows from the run's seed, which is no secret."""
CLIENT_KEYS = ("client", "partition-id")
"""Keys of a node's own config, of which one says whose node it is."""
Loader = Callable[[Context], Any]
"""One client's own data, in any form that `ipfl.data.from_clients` accepts for a client."""


@dataclass(frozen=True)
class NodeFolders:
    """Folders of a node: what its client remembers, and the arrays that it was sent."""

    memory: Path
    received: Path

    @classmethod
    def of(cls, context: Context) -> NodeFolders:
        """The folder that the node was started with, or one of its own in the home directory."""
        given = context.node_config.get("memory")
        root = Path(str(given)) if given else Path.home() / ".ipfl" / "nodes" / str(context.node_id)
        return cls(root, root / "received")


class OwnData(FederatedData):
    """`FederatedData` of the one client that is on this node, under its id in the federation."""

    def __init__(self, client: ClientId, data: Any, settings: RunSettings):
        self._inner = from_clients(
            [data], classes=settings.classes, probe=settings.task.probe, seed=settings.seed
        )
        self.name, self.partition = self._inner.name, self._inner.partition
        self.input_shape, self.target = self._inner.input_shape, self._inner.target
        self.clients: tuple[ClientId, ...] = (client,)

    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data; it is the same in every round."""
        return self._inner.parts(0, round)

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part."""
        return self._inner.sizes(0)


def has_own_data(context: Context, loader: Loader | None) -> bool:
    """Whether this node brings its own data; otherwise it has a part of the config's task."""
    return loader is not None or "data" in context.node_config


def _read_node_number(context: Context, *keys: str) -> int:
    """The number under the first of the keys that the node's config has."""
    for key in keys:
        if key in context.node_config:
            return int(context.node_config[key])
    raise InputError(f"this node was started without {' or '.join(keys)} (--node-config)")


def client_of_node(runner: ClientRunner, context: Context) -> ClientId:
    """The owner of the node's own data, or the client of the config's task with the node's number."""
    client, data = _read_node_number(context, *CLIENT_KEYS), runner.task.data
    if client not in (*data.clients, *data.unseen):
        raise InputError(f"the config's task has no client {client} ([task] clients and unseen)")
    return client


class HiddenError(RuntimeError):
    """An error of a node whose cause is said in its own log alone."""


class NodeApp(ClientApp):
    """A ClientApp that runs the client side of any method.

    Args:
        loader: Your own data: called with the node's Context, returns (x, y), a dict with `train` and `test`,
            or a map-style torch data set. None: the node's file, or its part of the config's task.
        model: Your own model: a callable (input_shape, classes) → `nn.Module`. None: the config's.
        folders: Where to keep things, for simulated nodes; None: from the node's own config.
        send_tracebacks: Whether the server gets the traceback of an error; otherwise it gets the error's type
            and text, and the traceback is printed here only.
    """

    def __init__(
        self,
        loader: Loader | None = None,
        model: Factory | None = None,
        *,
        folders: NodeFolders | None = None,
        send_tracebacks: bool = False,
    ):
        super().__init__()
        self.loader, self.model, self.folders = loader, model, folders
        self.send_tracebacks = send_tracebacks
        self.runners: dict[tuple[str, int | None], ClientRunner] = {}
        """By digest of the settings, and by node where nodes bring their own data: they take long to make."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Replies to one message; an error is a reply too."""
        try:
            with one_thread():
                content = self._reply(message, context)
        except InputError as error:
            content = pack_error(str(error), is_input=True)
        except HiddenError as error:
            traceback.print_exc()
            content = pack_error(str(error))
        except Exception as error:  # a client's code may raise anything, and the server must be told
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}"
            if self.send_tracebacks:
                text = "".join(traceback.format_exception(error))
            content = pack_error(text)
        return Message(content, reply_to=message)

    def _reply(self, message: Message, context: Context) -> RecordDict:
        header, arrays = unpack(message.content)
        folders = self.folders or NodeFolders.of(context)
        action = action_of(message.metadata.message_type)
        if action == HELLO:
            return self._reply_to_hello(read_field(header, "settings", str), arrays, context, folders)
        return self._reply_to_ask(action, AskHeader.read(header), arrays, context, folders)

    def _reply_to_hello(
        self, settings: str, arrays: dict[str, NumpyArray], context: Context, folders: NodeFolders
    ) -> RecordDict:
        """The client of this node, and what its data looks like: shape, classes and counts."""
        if settings not in arrays:
            raise MalformedError("the first message must bring the settings")
        runner = self._runner_for(settings, arrays[settings], context, folders)
        client, data = client_of_node(runner, context), runner.task.data
        info = NodeInfo(
            client=client,
            model_size=runner.network.size,
            classes=data.classes,
            input_shape=data.input_shape,
            samples=dict(data.sizes(client)),
        )
        return pack(info.to_header(), {})

    def _reply_to_ask(
        self,
        action: str,
        ask: AskHeader,
        sent: dict[str, NumpyArray],
        context: Context,
        folders: NodeFolders,
    ) -> RecordDict:
        """Runs one phase of one client."""
        cache = ArrayCache(folders.received / str(ask.client))
        named = {ask.settings, *ask.params.values()}
        arrays = sent | cache.load(named - set(sent))
        if missing := named - set(arrays):
            return pack_missing(missing)
        runner = self._runner_for(ask.settings, arrays[ask.settings], context, folders)
        if ask.client != client_of_node(runner, context):
            raise InputError(f"client {ask.client} is not on this node")
        if not ask.run_id and has_own_data(context, self.loader):
            raise InputError("the message names no run, by which this node keeps what it has revealed")
        record = decode(ask.params, arrays, ask.facts)
        if ask.model_size != runner.network.size:
            raise InputError(
                f"the model here has {runner.network.size} parameters, the server's has {ask.model_size}"
            )
        memory = NodeMemory(folders.memory / ask.run_id)
        memory.committed = ask.committed
        memory.join_attempt(ask.client, ask.first_rounds)
        if ask.statement is not None and not keep_statement(memory.folder / str(ask.client), ask):
            return pack_missing(())
        job = Job(action, ask.round, ask.client, record)
        with _hidden_errors(runner.privacy, InputError):
            reply = _with_memory(runner, memory).run(job)
        cache.add_ask({key: arrays[key] for key in named})
        digests, vectors = Encoder().encode(reply)
        return pack(ReplyHeader(ask.client, digests, dict(reply.facts)).to_header(), vectors)

    def _runner_for(
        self, settings: str, text: NumpyArray, context: Context, folders: NodeFolders
    ) -> ClientRunner:
        key = settings, context.node_id if has_own_data(context, self.loader) else None
        if key not in self.runners:
            if any(known != settings for known, _ in self.runners):  # another run has begun
                self.runners.clear()
            read = RunSettings.from_json(text.tobytes().decode())
            self.runners[key] = self._build_runner(read, context, folders)
        return self.runners[key]

    def _build_runner(self, settings: RunSettings, context: Context, folders: NodeFolders) -> ClientRunner:
        """Finds the node's data and its model; refuses settings that protect too little."""
        NodeLimits.read(context.node_config).check(settings.privacy)
        is_own = has_own_data(context, self.loader)
        if is_own:
            path = Path(str(context.node_config.get("data")))
            client = _read_node_number(context, *CLIENT_KEYS)
            factory = self.model or model_factory(settings.task.model)
            if settings.privacy.is_on and self.loader is None:
                check_points_apart(path, settings.task)
            with _hidden_errors(settings.privacy):
                own = self.loader(context) if self.loader else read_node_data(path, settings.task)
                task = Task(OwnData(client, own, settings), factory)
        else:
            task = Task.build(settings.task, settings.seed)
        return runner_under(settings.privacy)(
            task,
            settings.method,
            settings.train,
            settings.seed,
            NodeMemory(folders.memory),
            settings.privacy,
            settings.adapt,
            is_seeded=not is_own or SEEDED_NOISE in context.node_config,
        )


@contextmanager
def _hidden_errors(privacy: PrivacyConfig, *told: type[Exception]) -> Iterator[None]:
    """Keeps the text of an error, which may quote data, on the node where noise is to hide all points.

    Args:
        privacy: Of the run.
        told: Kinds of errors whose texts quote none.
    """
    try:
        yield
    except Exception as error:
        if not privacy.is_on or isinstance(error, told):
            raise
        raise HiddenError(f"{type(error).__name__}; the log of this node has more") from error


def _with_memory(runner: ClientRunner, memory: NodeMemory) -> ClientRunner:
    """The runner with the memory of one run and attempt; it shares data and model with the cached one."""
    own = copy.copy(runner)
    own.memory = memory
    return own


app = NodeApp()
