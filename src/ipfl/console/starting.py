"""Starts, stops and resumes runs, each as a process of its own: the same command that people type."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ipfl.console.form import Plan
from ipfl.console.records import RunRow, Started
from ipfl.console.run_list import FoundRun, RunList, make_key
from ipfl.errors import InputError
from ipfl.runs.comparison import PLAN

MAX_PROCESSES = 4
"""Runs that the console starts and that are not over."""
LOGS = ".console"
"""Folder beside the runs: what each started command printed."""
# Ctrl-C must reach a command that a console in the background starts, where it is ignored.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from ipfl.cli import main; main()"
)


@dataclass
class Starter:
    """The processes that this console started."""

    runs: RunList
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By the name of the folder under the folder of all runs."""

    @property
    def folder(self) -> Path:
        """Where new runs go.

        Raises:
            InputError: The console reads a database, not a folder.
        """
        if self.runs.folder is None:
            raise InputError("runs are started from a console of a folder: ipfl console --runs DIR")
        return self.runs.folder

    def command(self, plan: Plan) -> str:
        """What the plan is on the command line."""
        return shlex.join(["ipfl", *plan.arguments(str(self.folder / plan.name))])

    def start(self, plan: Plan) -> Started:
        """Starts a new run or comparison.

        Raises:
            InputError: The folder is there already, or too many are running.
        """
        target = self.folder / plan.name
        if target.exists():
            raise InputError(f"there is a folder {target} already; choose another name")
        self._launch(plan.name, plan.arguments(str(target)))
        return Started(name=plan.name, key=make_key(plan.name))

    def _launch(self, name: str, arguments: Sequence[str]) -> None:
        if len(self.alive()) >= MAX_PROCESSES:
            raise InputError(f"{MAX_PROCESSES} runs of this console are under way; wait or stop one")
        try:
            (self.folder / LOGS).mkdir(parents=True, exist_ok=True)
            with (self.folder / LOGS / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-c", MAIN, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C at the console's terminal is for the console
                )
        except OSError as error:
            raise InputError(f"cannot start a run in {self.folder}: {error.strerror}") from error
        self.runs.forget()

    def alive(self) -> list[str]:
        """Names of what is under way."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def _name(self, run: FoundRun) -> str:
        """The folder that a run was started in: its own, or that of its comparison."""
        return run.name.partition("/")[0]

    def can_stop(self, run: FoundRun) -> bool:
        """Whether the run belongs to a process of this console."""
        return self._name(run) in self.alive()

    def can_resume(self, run: FoundRun, row: RunRow) -> bool:
        """Whether the run could go on: it stopped, and is in a folder of its own or of a comparison."""
        is_under = run.folder is not None and run.folder != self.runs.folder
        return is_under and row.state == "unfinished" and not self.can_stop(run)

    def stop(self, run: FoundRun) -> None:
        """Ends a run as Ctrl-C does: what is finished is kept.

        Raises:
            InputError: It was not started here.
        """
        if not self.can_stop(run):
            raise InputError("this run was not started from this console: stop it where it was started")
        self._processes[self._name(run)].send_signal(signal.SIGINT)

    def resume(self, run: FoundRun) -> Started:
        """Goes on with a run that was stopped, or with its comparison."""
        if self.can_stop(run):
            raise InputError("this run is under way")
        name = self._name(run)
        target = self.folder / name
        is_comparison = (target / PLAN).exists()
        self._launch(name, ["compare" if is_comparison else "run", "--resume", str(target)])
        return Started(name=name, key=run.key)

    def failures(self) -> dict[str, str]:
        """Name → last line of what a command printed that ended with an error."""
        found = {}
        for name, process in self._processes.items():
            if process.poll() not in (None, 0, 130):
                found[name] = self._last_line(name)
        return found

    def _last_line(self, name: str) -> str:
        try:
            text = (self.folder / LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "it left no message"
        return next((line for line in reversed(text.splitlines()) if line.strip()), "it left no message")
