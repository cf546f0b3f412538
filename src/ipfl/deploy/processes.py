"""Processes that we start, watch and always end: after Ctrl-C, SIGTERM, a failure, or a command's last line.

Each runs in a process group of its own, so that what it started itself ends with it, under a guard that ends
it should we be killed without a word (`ipfl.deploy.guarded`), and writes to a log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

PATIENCE = 8.0
"""Seconds that a process has to end by itself before it is killed."""


class ProcessDiedError(RuntimeError):
    """A process that was to go on is over; says which, and the end of its log."""


def environment(home: Path) -> dict[str, str]:
    """What Flower's commands run with: their own home, no telemetry, no look for updates.

    The commands start each other by name, so the folder of this Python comes first on the path.
    """
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }


@dataclass
class Running:
    """A process on its way."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def tail(self, lines: int = 3) -> str:
        """The end of what it said."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def kill(self) -> None:
        """Ends it and all that it started at once, without a chance to say goodbye."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def ask_to_end(self) -> None:
        """Sends SIGTERM to it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)


class Processes:
    """A set of processes that ends as a whole; use as a context manager."""

    def __init__(self, logs: Path):
        self.logs = logs
        self.running: dict[str, Running] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> Running:
        """Starts a command; what it prints goes to `<name>.log`."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "ipfl.deploy.guarded", *command],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[name] = Running(name, process, log)
        return self.running[name]

    def check(self) -> None:
        """Raises `ProcessDiedError` if one of them is over."""
        for one in self.running.values():
            if not one.alive():
                code = one.process.returncode
                raise ProcessDiedError(
                    f"{one.name} ended with code {code}; {one.log} ends with: {one.tail()}"
                )

    def wait_while_alive(self) -> None:
        """Waits until one of them ends."""
        while all(one.alive() for one in self.running.values()):
            time.sleep(0.2)

    def stop(self, name: str) -> None:
        """Ends one of them."""
        self._end([self.running.pop(name)])

    def close(self) -> None:
        """Ends all, the last started first."""
        ending = list(reversed(self.running.values()))
        self.running.clear()
        self._end(ending)

    def _end(self, ending: Sequence[Running]) -> None:
        """Asks them to end, and kills what is left of their groups after a while, or at a second Ctrl-C."""
        try:
            for one in ending:
                one.ask_to_end()
            deadline = time.monotonic() + PATIENCE
            for one in ending:
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for one in ending:
                one.kill()
