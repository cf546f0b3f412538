"""Starts processes, and stops all of them at the end: after Ctrl-C, SIGTERM, an error, or a normal exit.

Each process has its own process group, so that its children are stopped with it, and writes to a log file. If
this process is killed (SIGKILL), they end as well; see `ipfl.deploy.end_with_parent`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

STOP_SECONDS = 8.0
"""How long a process may take to end after SIGTERM, before it is killed."""


PRIVATE_UMASK = 0o077
"""What they write is for their user only: messages, models, logs."""


class ProcessDiedError(RuntimeError):
    """A process ended that should have kept running; the message has the end of its log."""


@dataclass
class RunningProcess:
    """A process that was started, with its log file."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def last_lines(self, count: int = 3) -> str:
        """The last lines of its log; empty if there is no log yet."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
        except OSError:
            return ""

    def terminate(self) -> None:
        """Sends SIGTERM to it and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills it and its children (SIGKILL), and waits for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()


def flower_environment(home: Path) -> dict[str, str]:
    """Environment variables for Flower's commands: no telemetry, no check for updates, their files in `home`.

    The commands start each other by name, so the folder of this Python is the first in PATH.
    """
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
    }


class Processes:
    """Processes that are stopped together, at the end of the `with` block.

    Args:
        logs: Folder for their log files.
    """

    def __init__(self, logs: Path):
        self.logs = logs
        self.running: dict[str, RunningProcess] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> RunningProcess:
        """Starts a command; its output is appended to `<name>.log`."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        log.touch(mode=0o600)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "ipfl.deploy.end_with_parent", *command],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=PRIVATE_UMASK,
            )
        self.running[name] = RunningProcess(name, process, log)
        return self.running[name]

    def wait_until_one_ends(self) -> None:
        """Returns when one of them has ended."""
        while all(process.is_alive() for process in self.running.values()):
            time.sleep(0.2)

    def raise_if_one_ended(self) -> None:
        """Raises ProcessDiedError if one of them has ended."""
        for process in self.running.values():
            if not process.is_alive():
                raise ProcessDiedError(
                    f"{process.name} ended with code {process.popen.returncode}; "
                    f"{process.log} ends with: {process.last_lines()}"
                )

    def stop_all(self) -> None:
        """Sends SIGTERM, and kills those that still run after STOP_SECONDS or after a second Ctrl-C."""
        processes = list(reversed(self.running.values()))
        self.running.clear()
        try:
            for process in processes:
                process.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.popen.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                process.kill()


def find_free_ports(count: int) -> list[int]:
    """Different ports of the loopback interface that are not in use now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def find_free_port() -> int:
    """A port of the loopback interface that is not in use now."""
    return find_free_ports(1)[0]
