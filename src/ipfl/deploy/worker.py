"""Runs a node's client code: a process that has imported everything already, and forks for each message.

Flower starts a fresh Python for every message, which spends most of a phase on importing torch. Here a
SuperNode is started with `--isolation process`, and this worker takes its tasks: a fork costs milliseconds,
and what client code does to its process still ends with that process.

    python -m ipfl.deploy.worker 127.0.0.1:9094 SECRET_FILE
"""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

import ipfl.engines.flower.client_app  # noqa: F401 (what messages need is imported once)

POLL = 0.4
"""Seconds between looks for a task: a look costs 10 ms, and a SuperNode looks for messages every 3 s."""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


def serve(address: str, secret: bytes, parent: int) -> None:
    """Takes the tasks of the SuperNode at `address`, one fork each, until the process ends."""
    torch.set_num_threads(1)
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback; the secret says who may take tasks
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE})),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    gc.freeze()  # children share these pages as long as nobody touches them
    while os.getppid() == parent:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.token and os.fork() == 0:
            _answer(address, found.token)
        time.sleep(POLL)


def _answer(address: str, token: str) -> None:
    """The life of a fork: one message. It never returns into the loop of its parent."""
    code = 1
    try:
        start_parent_process_monitor(os.getppid())
        run_clientapp(address, token, insecure=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]).read_bytes(), os.getppid())
