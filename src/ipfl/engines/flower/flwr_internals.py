"""All that we use of Flower beyond its public interface; written for flwr 1.41.0.

Flower's public packages are `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. What is here may change with
any release: after an upgrade, check each entry, then change `FLWR_VERSION` (a test compares it).

- Error codes of a message (`flwr.common.constant.ErrorCode`): to tell a reply that came too late from one
  that failed.
- Codes and texts in the output of Flower's commands: to tell the user why a node cannot connect. These are
  plain values here, so that processes which only start Flower's commands need not import flwr.
- `TaskIdentity` and `NodeInfo`: for a grid of nodes inside this process. Flower's own, `run_simulation`, is
  deprecated, and the command `flwr run`, which is to replace it, starts processes of its own.
- `flwr.supercore.runtime.RuntimeHttpClient` with its interceptors and retries, `AcquireTaskRequest` and
  `TaskType`: a worker of our own that takes tasks from a SuperNode (`--isolation process`).
- `flwr.supernode.runtime.run_clientapp`: to run one task, which is one message to the ClientApp.
- `flwr.supernode.start_client_internal`: its functions `_pull_and_store_message` and `_push_messages`, with
  their keywords `pull_object` and `push_object`, to know that a SuperNode is at work; that it calls
  `time.sleep(3)` when there was no message; and `flwr.supernode.cli.flower_supernode`, to run one in a
  process of ours.
- `flwr.supernode.fleet_http_connection`: its `HeartbeatSender`, whose `_run` ends with an error that it did
  not expect.
- The tables of a SuperLink's database that hold messages, to empty them between two starts.
- `flwr.supercore.app_utils.start_parent_process_monitor`: to end a task's process when the worker ends.

For `ipfl.deploy`, which decides who may do what:

- `flower_superlink` calls `uvicorn.run`, and `SubprocessExecutor` calls `subprocess.Popen` with `--token`: to
  run both commands with other functions in these places.
- The names of the SuperLink's routes are in `ipfl.deploy.server.front`.
- `ControlHttpClient`, whose `_client` is replaced by one for a Unix socket, and its requests: to start,
  follow and stop runs, and to register keys.
- `PushMessagesRequest`: whom a message that a node pushes is from; and `PROTOBUF_REQUEST_TYPES`: what the
  SuperLink parses a request as, before it knows whose it is; and the headers with a node's signature.
- `build_fab_from_disk`, `load_app`; and `install_from_fab` and `get_load_client_app_fn`, by which
  `run_clientapp` installs and imports an app: to run no other app than the node's own.

Three assumptions are made elsewhere: `NodeApp` (client.py) overrides `ClientApp.__call__`; flwr reads
`FLWR_TELEMETRY_ENABLED` once, when it is imported (`__init__.py`); and a connected SuperNode ends with exit
code 0 only if the server has unregistered its key (`ipfl.deploy.node.supernode`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

FLWR_VERSION = "1.41.0"
"""The version of flwr that this module was written for."""
EXPIRED_ERROR_CODES = (3, 4)
"""MESSAGE_UNAVAILABLE and REPLY_MESSAGE_UNAVAILABLE: Flower noticed before us that the time for a reply is
over."""
ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"

CONNECTED_TEXT = "SuperNode ID:"
"""A SuperNode prints this when the server has accepted it."""
NO_ANSWER_TEXT = "Connection attempt failed"
"""A SuperNode prints this when the server does not answer; it then tries again by itself."""
KEY_REFUSED_TEXT = "[code: 2004]"
"""A SuperNode prints this before it ends because the server does not accept its key
(FLEET_NODE_ACTIVATION_FAILED)."""
BAD_CERTIFICATE_TEXT = "CERTIFICATE_VERIFY_FAILED"
"""OpenSSL's text, which a SuperNode prints if the server's certificate is not one of its own authority."""
MESSAGE_TABLES = ("message_ins", "message_res", "objects", "object_children", "run_objects")
"""Tables of a SuperLink's database with messages and their content."""
COMPLETED_STATUS = "finished:completed"
"""Status that Flower gives a run whose ServerApp returned without an exception."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 3.0
"""Seconds after which a SuperNode asks again for messages: after one, and if there was none for a while."""
SUPERLINK_NODE_ID = 1
"""Flower's id of the server, as sender and receiver of messages."""


def write_messages_here() -> None:
    """Lets this process write messages as Flower's own processes do, which say who they are."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = SUPERLINK_NODE_ID


def node_info(node: int, key: bytes) -> Any:
    """What a grid says of a connected node."""
    from flwr.proto.node_pb2 import NodeInfo

    return NodeInfo(node_id=node, public_key=key)


def beat_while_at_work(beat: Callable[[], object]) -> None:
    """Has a SuperNode of this process call `beat` whenever it gets on.

    That is when it has asked its server for messages, whether there were any or not, and after each part of a
    message that it received or sent. It is not called while a SuperNode waits for the worker's reply, nor
    after its own heartbeats to the server have ended: that one then sends no messages, and it asks in vain.
    """
    import flwr.supernode.fleet_http_connection
    import flwr.supernode.start_client_internal

    module: Any = flwr.supernode.start_client_internal
    connection: Any = flwr.supernode.fleet_http_connection
    pull, push = module._pull_and_store_message, module._push_messages
    has_lost_server = threading.Event()

    class WatchedSender(connection.HeartbeatSender):  # type: ignore[misc]
        def _run(self) -> None:
            try:
                super()._run()
            except Exception:
                has_lost_server.set()
                raise

    def beating(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_beat(*args: Any, **named: Any) -> Any:
            found = call(*args, **named)
            if not has_lost_server.is_set():
                beat()
            return found

        return call_and_beat

    def pull_and_beat(**given: Any) -> Any:
        return beating(pull)(**given | {"pull_object": beating(given["pull_object"])})

    def push_and_beat(**given: Any) -> Any:
        return beating(push)(**given | {"push_object": beating(given["push_object"])})

    module._pull_and_store_message, module._push_messages = pull_and_beat, push_and_beat
    connection.HeartbeatSender = WatchedSender


def ask_soon_after_messages() -> None:
    """Has a SuperNode of this process ask for the next message soon after it had one.

    Flower has it wait 3 s whenever there is none, and a round has several messages for each node.
    """
    import flwr.supernode.start_client_internal

    module: Any = flwr.supernode.start_client_internal
    pull, pause = module._pull_and_store_message, SHORTEST_PAUSE

    def pull_message(**given: Any) -> Any:
        nonlocal pause
        found = pull(**given)
        if found is not None:
            pause = SHORTEST_PAUSE
        return found

    def sleep(seconds: float) -> None:
        nonlocal pause
        if seconds >= LONGEST_PAUSE:
            seconds, pause = pause, min(1.5 * pause, LONGEST_PAUSE)
        time.sleep(seconds)

    module._pull_and_store_message = pull_message
    module.time = SimpleNamespace(**vars(time) | {"sleep": sleep})


def run_supernode(arguments: list[str]) -> None:
    """Runs the command `flower-supernode` in this process."""
    from flwr.supernode.cli import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


class SuperNodeTasks:
    """The tasks of a SuperNode that was started with `--isolation process`.

    Imports here and not at the top: only the worker of a deployed node needs them. All of them are imported
    when the object is made, so that forks of the process find them imported.

    Args:
        address: Where the SuperNode offers its tasks: host and port on this machine.
        secret: Proves to the SuperNode that this process may take them.
    """

    def __init__(self, address: str, secret: bytes):
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.app_utils import start_parent_process_monitor
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient
        from flwr.supernode.runtime.run_clientapp import run_clientapp

        self._address = address
        self._request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        self._run_clientapp, self._monitor_parent = run_clientapp, start_parent_process_monitor
        self._connection = RuntimeHttpClient.from_server_address(
            server_address=address,
            insecure=True,  # loopback; the secret decides who may take tasks
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(
                    master_secret=secret, protected_methods=frozenset({ACQUIRE_TASK})
                ),
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )

    def acquire(self) -> str | None:
        """Takes the next task; returns its token, or None if there is none at the moment."""
        token: str = self._connection.AcquireTask(self._request).token
        return token or None

    def run(self, token: str) -> None:
        """Runs a task in this process, which ends when its parent does."""
        self._monitor_parent(os.getppid())
        self._run_clientapp(self._address, token, insecure=True)


class SuperLinkControl:
    """What an operator can ask a SuperLink that listens on a Unix socket. Use it as a context manager.

    httpx raises TransportError if nobody answers, and HTTPStatusError if the SuperLink refuses.
    """

    def __init__(self, socket: Path):
        import httpx
        from flwr.proto import control_pb2
        from flwr.supercore.control import ControlHttpClient

        self._ask: Any = control_pb2
        self._control = ControlHttpClient("http://superlink")
        # Through the folder's number: the path of a socket may not have more than 107 characters.
        self._folder = os.open(socket.parent, os.O_RDONLY) if socket.parent.is_dir() else None
        short = f"/proc/self/fd/{self._folder}"
        path = f"{short}/{socket.name}" if os.path.isdir(short) else str(socket)
        self._control._client = httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=60)

    def __enter__(self) -> SuperLinkControl:
        return self

    def __exit__(self, *error: object) -> None:
        self._control.close()
        if self._folder is not None:
            os.close(self._folder)

    def check(self) -> None:
        """Raises if nobody answers."""
        self._control._client.get("http://superlink/health")

    def start_run(self, bundle: bytes, settings: Mapping[str, str | int | float | bool]) -> int:
        """Starts a run of an app; returns its id."""
        from flwr.common.serde import user_config_to_proto
        from flwr.proto.fab_pb2 import Fab

        fab = Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle)
        request = self._ask.StartRunRequest(fab=fab, override_config=user_config_to_proto(dict(settings)))
        return int(self._control.StartRun(request).run_id)

    def log_lines(self, run: int) -> Iterator[str]:
        """The lines of a run's log as they appear, until the run has ended."""
        rest = ""
        for part in self._control.StreamLogs(self._ask.StreamLogsRequest(run_id=run)):
            *lines, rest = (rest + part.log_output).split("\n")
            yield from lines
        if rest:
            yield rest

    def status(self, run: int) -> tuple[str, str]:
        """Flower's status of a run, and its details."""
        found = self._control.ListRuns(self._ask.ListRunsRequest(run_id=run)).run_dict[run].status
        return ":".join(filter(None, (found.status, found.sub_status))), found.details

    def stop_run(self, run: int) -> None:
        """Ends a run."""
        self._control.StopRun(self._ask.StopRunRequest(run_id=run))

    def nodes(self) -> dict[int, bytes]:
        """The id and the public key (PEM) of each registered node."""
        found = self._control.ListNodes(self._ask.ListNodesRequest()).nodes_info
        return {node.node_id: node.public_key for node in found if not node.unregistered_at}

    def register(self, key: bytes, name: str) -> None:
        """Registers a node's public key, in OpenSSH's format."""
        from cryptography.hazmat.primitives import serialization
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        public: Any = serialization.load_ssh_public_key(key)
        request = self._ask.RegisterNodeRequest(public_key=public_key_to_bytes(public), name=name)
        self._control.RegisterNode(request)

    def unregister(self, node: int) -> None:
        """Ends a node's registration; the node disconnects."""
        self._control.UnregisterNode(self._ask.UnregisterNodeRequest(node_id=node))


def run_superlink(options: list[str], serve: Callable[..., None]) -> None:
    """Runs the command `flower-superlink` with `serve` instead of `uvicorn.run`."""
    import uvicorn

    uvicorn.run = serve
    from flwr.superlink.cli.flower_superlink import flower_superlink

    sys.argv = ["flower-superlink", *options]
    flower_superlink()


def run_superexec(options: list[str], start_task: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Runs the command `flower-superexec` with `start_task` instead of `subprocess.Popen` for its tasks."""
    executor: Any = import_module("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=start_task, DEVNULL=subprocess.DEVNULL)
    from flwr.supercore.cli.flower_superexec import flower_superexec

    sys.argv = ["flower-superexec", *options]
    flower_superexec()


@dataclass(frozen=True)
class PushedMessage:
    """What a request to push a message says."""

    node: int
    """Whose signature the request has."""
    sender: int
    receiver: int
    is_reply: bool


def read_pushed_message(body: bytes) -> PushedMessage:
    """Reads the request by which a node pushes a message.

    Raises:
        ValueError: It is not one, or has not exactly one message.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    try:
        request = PushMessagesRequest.FromString(body)
    except Exception as error:  # protobuf has errors of its own
        raise ValueError("not a message") from error
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise ValueError("not exactly one message")
    metadata = request.messages_list[0].metadata
    return PushedMessage(
        node=request.node.node_id,
        sender=metadata.src_node_id,
        receiver=metadata.dst_node_id,
        is_reply=bool(metadata.reply_to_message_id),
    )


def request_type(path: str) -> Any:
    """The protobuf descriptor of what a route of the SuperLink takes; KeyError if there is no such route."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    return PROTOBUF_REQUEST_TYPES["POST", path].DESCRIPTOR


def signing_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The public key (PEM) whose holder has signed the time that a request says; None: nobody has.

    Whether that time is now, the SuperLink checks.
    """
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    names = (FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
    key, time_text, signature = (headers.get(name.encode(), b"") for name in names)
    try:
        public = b64decode(key, validate=True)
        is_signed = verify_signature(
            bytes_to_public_key(public), time_text, b64decode(signature, validate=True)
        )
    except Exception:  # of base64 and of cryptography, on what anybody may send
        return None
    return public if is_signed else None


def bundle_app(folder: Path) -> bytes:
    """The bundle that Flower makes of an app's files, as a server sends it; ValueError if it is no app."""
    from flwr.cli.build import build_fab_from_disk

    return build_fab_from_disk(folder)


def load_client_app(folder: Path) -> Any:
    """Imports what an app's pyproject.toml names as its ClientApp."""
    from flwr.common.config import get_project_config
    from flwr.supercore.object_ref import load_app

    reference = get_project_config(folder)["tool"]["flwr"]["app"]["components"]["clientapp"]
    return load_app(reference, ValueError, folder)


def pin_client_app(client_app: ClientApp, check_bundle: Callable[[bytes], None]) -> None:
    """From now on, `SuperNodeTasks.run` runs this app.

    `check_bundle` gets what the server sent; an error that it raises becomes an error reply to the server.
    """
    runtime: Any = import_module("flwr.supernode.runtime.run_clientapp")
    for name in ("install_from_fab", "get_load_client_app_fn"):
        if not hasattr(runtime, name):
            raise RuntimeError(f"this version of flwr has no {name}: apps cannot be checked")
    runtime.install_from_fab = lambda bundle, **options: check_bundle(bundle)
    runtime.get_load_client_app_fn = lambda **options: lambda *name_of_app: client_app
