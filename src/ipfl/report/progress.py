"""Progress of a run: a live bar on a terminal, a line every tenth of the rounds anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from ipfl.core.rounds import summarize
from ipfl.runs.result import Observer

LINES_PER_RUN = 10
"""Lines of a run where there is no terminal."""
LABEL_WIDTH = 24
"""Width of what stands before a bar, so that the bars of many runs stand in line."""
MAX_EVENTS = 5
"""Events of a run that are printed; all of them are in `metrics.jsonl`."""


def observer(console: Console, label: str, number: int = 1, of: int = 1) -> Observer:
    """An observer for the run that is `number` of so many, fit for where the console leads."""
    kind = Bar if console.is_terminal else Lines
    return kind(console, label, f"{number}/{of} " if of > 1 else "")


def accuracy(line: Mapping[str, Any]) -> str | None:
    """Mean personalized accuracy in a line of `metrics.jsonl`, if that round was evaluated."""
    figure = line.get("evaluation", {}).get("personalized_accuracy")
    return None if figure is None else f"{100 * figure['mean']:.1f} %"


class Lines:
    """One line every tenth of the rounds."""

    def __init__(self, console: Console, label: str, place: str):
        self.console, self.label, self.place = console, label, place
        self.rounds = self.printed = 0
        self.newest: str | None = None

    def start(self, method: str, rounds: int) -> None:
        """Says what begins."""
        self.rounds = rounds
        self.console.print(f"{self.place}{self.label}: {rounds} rounds", highlight=False)

    def round(self, line: Mapping[str, Any]) -> None:
        """Says how far the run is, if another tenth is done."""
        self.printed = print_events(self.console, line, self.printed)
        done = line["round"] + 1
        self.newest = accuracy(line) or self.newest
        if done * LINES_PER_RUN // self.rounds > (done - 1) * LINES_PER_RUN // self.rounds:
            known = f", accuracy {self.newest}" if self.newest else ""
            text = f"{self.place}{self.label}: round {done}/{self.rounds}{known}"
            self.console.print(text, highlight=False, soft_wrap=True)

    def finish(self) -> None:
        """Nothing left to say: the last round's line is out."""


class Bar:
    """A live bar with rounds, time left and the newest accuracy.

    It lives from `start` to `finish` only: its refreshing thread must not be there when workers are
    forked.
    """

    def __init__(self, console: Console, label: str, place: str):
        self.console, self.label, self.place = console, label, place
        self.printed = 0
        self.bar = Progress(
            TextColumn("{task.description}", table_column=Column(width=LABEL_WIDTH, no_wrap=True)),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[accuracy]:>8}", style="bold"),
            console=console,
            expand=True,
        )
        self.task: TaskID | None = None

    def start(self, method: str, rounds: int) -> None:
        """Shows the empty bar."""
        self.task = self.bar.add_task(f"{self.place}{escape(self.label)}", total=rounds, accuracy="")
        self.bar.start()

    def round(self, line: Mapping[str, Any]) -> None:
        """Moves on by a round."""
        assert self.task is not None
        self.printed = print_events(self.console, line, self.printed)
        known = accuracy(line) or self.bar.tasks[0].fields["accuracy"]
        self.bar.update(self.task, advance=1, accuracy=known)

    def finish(self) -> None:
        """Leaves the bar as it is on the screen."""
        self.bar.stop()


def print_events(console: Console, line: Mapping[str, Any], printed: int) -> int:
    """Prints what a person should know of a round; returns how many were printed so far."""
    for event in summarize(line["events"]):
        printed += 1
        if printed <= MAX_EVENTS:
            console.print(
                f"  round {line['round'] + 1}: {event}", style="yellow", markup=False, highlight=False
            )
        elif printed == MAX_EVENTS + 1:
            console.print("  more events: see metrics.jsonl", style="yellow")
    return printed
