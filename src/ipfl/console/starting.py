"""Starts, stops and resumes runs, each as a process of its own: the same command that people type."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ipfl.console.form import StartRequest
from ipfl.console.records import RunRow, Started
from ipfl.console.run_list import FoundRun, RunList, make_key
from ipfl.errors import InputError
from ipfl.keep.file_names import PLAN_FILE
from ipfl.keep.run_folder import request_stop
from ipfl.system.files import is_locked

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

    def command(self, plan: StartRequest) -> str:
        """What the plan is on the command line."""
        return shlex.join(["ipfl", *plan.arguments(str(self.folder / plan.name))])

    def start(self, plan: StartRequest) -> Started:
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
            with self._log(name).open("wb") as log:
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

    def _log(self, name: str) -> Path:
        """What the command of a run printed."""
        return self.folder / LOGS / f"{make_key(name)}.log"

    def alive(self) -> list[str]:
        """Names of what is under way."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def starting(self) -> list[str]:
        """Names of what is under way and has left nothing to show yet."""
        found = self.runs.find()
        return [name for name in self.alive() if not any(_is_part(key, make_key(name)) for key in found)]

    def _folder_of(self, run: FoundRun) -> Path | None:
        """What is resumed: the folder of the run's comparison, or its own; None: it is in no folder."""
        if run.folder is None:
            return None
        top = self.runs.folder
        above = run.folder.parents[:2]  # COMPARISON/METHOD/seed-S
        return next((one for one in above if one != top and (one / PLAN_FILE).is_file()), run.folder)

    def _name(self, run: FoundRun) -> str:
        """Of what is resumed, in the folder of all runs."""
        folder = self._folder_of(run)
        return run.name if folder is None else folder.relative_to(self.folder).as_posix()

    def can_stop(self, run: FoundRun) -> bool:
        """Whether a process is at work on the run: one of this console, or any that reads requests."""
        return self._name(run) in self.alive() or bool(run.folder and is_locked(run.folder))

    def can_resume(self, run: FoundRun, row: RunRow) -> bool:
        """Whether the run could go on: it stopped, and nobody is at work on it or on its comparison."""
        folder = self._folder_of(run)
        if folder is None or folder == self.runs.folder or row.state != "unfinished":
            return False
        return not self.can_stop(run) and not is_locked(folder)

    def stop(self, run: FoundRun) -> None:
        """Ends a run as Ctrl-C does: what is finished is kept.

        A process of this console is interrupted at once. Any other one, wherever it was started, finds the
        request in the run's folder and ends after the round that it is at.

        Raises:
            InputError: Nobody is at work on it.
        """
        process = self._processes.get(self._name(run))
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
        elif run.folder is not None and is_locked(run.folder):
            request_stop(run.folder)
        else:
            raise InputError("no process is at work on this run")

    def resume(self, run: FoundRun) -> Started:
        """Goes on with a run that was stopped, or with its comparison."""
        target = self._folder_of(run)
        if target is None or self.can_stop(run):
            raise InputError("this run is under way" if target else "this run is not in a folder")
        is_comparison = (target / PLAN_FILE).exists()
        name = self._name(run)
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
            text = self._log(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "it left no message"
        return next((line for line in reversed(text.splitlines()) if line.strip()), "it left no message")


def _is_part(key: str, started: str) -> bool:
    """Whether a run is what was started, or one of a comparison that was."""
    return key == started or key.startswith(make_key(f"{started}/"))
