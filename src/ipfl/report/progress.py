"""Progress of a run: a live bar on a terminal, a line every tenth of the rounds anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from ipfl.core.rounds import summarize
from ipfl.results.result import Observer

LINES_PER_RUN = 10
"""Lines of a run where there is no terminal."""
LABEL_WIDTH = 24
"""Columns before a bar, so that the bars of many runs are aligned."""
MAX_EVENTS = 5
"""Events of a run that are printed; all of them are in `metrics.jsonl`."""


def progress_observer(console: Console, label: str) -> Observer:
    """Shows the progress of a run: a bar on a terminal, lines elsewhere."""
    kind = ProgressBar if can_draw_bars(console) else ProgressLines
    return kind(console, label)


def progress_console() -> Console:
    """Where progress is shown: the standard error output, or the output of a notebook's cell."""
    console = Console(stderr=True)
    if console.is_jupyter and not can_draw_bars(console):
        # Rich would make a block of HTML of every line, and notebooks colour what goes to standard error.
        return Console(file=sys.stdout, force_jupyter=False, force_terminal=False)
    return console


def can_draw_bars(console: Console) -> bool:
    """Whether a console can change what it has shown: a terminal, or a notebook with widgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def accuracy_text(line: Mapping[str, Any]) -> str | None:
    """Mean personalized accuracy in a line of `metrics.jsonl`, if that round was evaluated."""
    figure = line.get("evaluation", {}).get("personalized_accuracy")
    return None if figure is None else f"{100 * figure['mean']:.1f} %"


class ProgressLines:
    """One line every tenth of the rounds.

    Args:
        console: Where to.
        label: Of the run.
        prefix: Which of several runs it is.
    """

    def __init__(self, console: Console, label: str, prefix: str = ""):
        self.console, self.label, self.prefix = console, label, prefix
        self.rounds = self.printed = 0
        self.accuracy: str | None = None

    def start(self, method: str, rounds: int) -> None:
        """Prints what begins."""
        self.rounds = rounds
        self.console.print(f"{self.prefix}{self.label}: {rounds} rounds", highlight=False)

    def round(self, line: Mapping[str, Any]) -> None:
        """Prints how far the run is, if another tenth is done."""
        label = f"{self.prefix}{self.label}" if self.prefix else ""
        self.printed = print_events(self.console, line, self.printed, label)
        done = line["round"] + 1
        self.accuracy = accuracy_text(line) or self.accuracy
        if done * LINES_PER_RUN // self.rounds > (done - 1) * LINES_PER_RUN // self.rounds:
            newest = f", accuracy {self.accuracy}" if self.accuracy else ""
            text = f"{self.prefix}{self.label}: {done} of {self.rounds} rounds{newest}"
            self.console.print(text, highlight=False, soft_wrap=True)

    def finish(self) -> None:
        """The last round's line is printed already."""

    def note(self, text: str) -> None:
        """Prints what the run does now."""
        print_note(self.console, f"{self.prefix}{self.label}", text)


class ProgressBar:
    """A live bar with rounds, time left and the newest accuracy.

    It is shown from `start` to `finish` only: its thread must not run when workers are forked.
    """

    def __init__(self, console: Console, label: str):
        self.console, self.label = console, label
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
        self.task = self.bar.add_task(escape(self.label), total=rounds, accuracy="")
        self.bar.start()

    def round(self, line: Mapping[str, Any]) -> None:
        """Moves on by a round."""
        assert self.task is not None
        self.printed = print_events(self.console, line, self.printed)
        known = accuracy_text(line) or self.bar.tasks[0].fields["accuracy"]
        self.bar.update(self.task, advance=1, accuracy=known)

    def finish(self) -> None:
        """Leaves the bar as it is on the screen."""
        self.bar.stop()

    def note(self, text: str) -> None:
        """Prints what the run does now."""
        print_note(self.console, self.label, text)


def print_note(console: Console, label: str, text: str) -> None:
    """Prints what a run does beside its rounds."""
    console.print(f"{label}: {text}", markup=False, highlight=False, soft_wrap=True)


def print_events(console: Console, line: Mapping[str, Any], printed: int, label: str = "") -> int:
    """Prints what a person should know of a round; returns how many were printed so far.

    Args:
        console: Where to.
        line: What `metrics.jsonl` says of the round.
        printed: How many of this run were printed before.
        label: Of the run, if there are several.
    """
    run = f"{label}, " if label else ""
    for event in summarize(line["events"]):
        printed += 1
        if printed <= MAX_EVENTS:
            console.print(
                f"  {run}round {line['round']}: {event}", style="yellow", markup=False, highlight=False
            )
        elif printed == MAX_EVENTS + 1:
            console.print(f"  {run}more events: see metrics.jsonl", style="yellow", markup=False)
    return printed
