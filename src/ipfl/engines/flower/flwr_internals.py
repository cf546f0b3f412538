"""All that we use of Flower beyond its public interface; written for flwr 1.41.0.

Flower's public packages are `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. What is here may change with
any release: after an upgrade, check each entry, then change `FLWR_VERSION` (a test compares it).

- Error codes of a message (`flwr.common.constant.ErrorCode`): to tell a reply that came too late from one
  that failed.
- Codes and texts in the output of Flower's commands: to tell the user why a node cannot connect. These are
  plain values here, so that processes which only start Flower's commands need not import flwr.
- `flwr.simulation.run_simulation`: simulated nodes inside this process. Flower has deprecated it; the command
  `flwr run`, which is to replace it, starts processes of its own.
- `flwr.supercore.runtime.RuntimeHttpClient` with its interceptors and retries, `AcquireTaskRequest` and
  `TaskType`: a worker of our own that takes tasks from a SuperNode (`--isolation process`).
- `flwr.supernode.runtime.run_clientapp`: to run one task, which is one message to the ClientApp.
- `flwr.supercore.app_utils.start_parent_process_monitor`: to end a task's process when the worker ends.

In `ipfl.deploy` there is more, each beside what it is for: the routes of the SuperLink and the form of a
pushed message (`front`), the call of `uvicorn.run` in `flower-superlink` (`superlink_process`), how a
SuperExec starts a task (`superexec_process`), where `flwr` looks for an access token (`operator_access`), and
how an app is built, installed and loaded (`installed_app`).

Three assumptions are made elsewhere: `NodeApp` (client.py) overrides `ClientApp.__call__`; flwr reads
`FLWR_TELEMETRY_ENABLED` once, when it is imported (`__init__.py`); and a connected SuperNode ends with exit
code 0 only if the server has unregistered its key (`ipfl.deploy.supernode`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

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
BAD_PRIVATE_KEY_TEXT = "private key"
"""A SuperNode prints this, in upper or lower case, before it ends because it cannot use its key file."""
KEY_ALREADY_REGISTERED_TEXT = "[code: 23]"
"""In the error message of `flwr supernode register` if the key is registered (PUBLIC_KEY_ALREADY_IN_USE)."""
COMPLETED_STATUS = "finished:completed"
"""Status that Flower gives a run whose ServerApp returned without an exception."""


def run_simulation(server: ServerApp, client: ClientApp, nodes: int, backend: dict[str, Any]) -> None:
    """Runs a ServerApp with simulated nodes on Ray; returns when the ServerApp does.

    Args:
        server: What the server runs.
        client: What each node runs.
        nodes: Number of nodes.
        backend: Arguments for Ray.
    """
    import flwr.simulation  # with it comes Ray, which takes a second to import

    flwr.simulation.run_simulation(server, client, nodes, backend_config=backend)


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
