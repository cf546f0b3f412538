"""Progress of one run or of many: live bars on a terminal, a line every tenth of the rounds anywhere else.

12/42 ditto, seed 0      30 rounds in 0:41            24.1 %
42 runs                  ━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━  12/42   9:02
13/42 fedem, seed 0      ━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━  17/30   0:21   41.0 %
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from ipfl.core.rounds import summarize
from ipfl.results.result import Observer

LINES_PER_RUN = 10
"""Lines of a run where there is no terminal."""
LABEL_WIDTH = 24
"""Columns before a bar, so that the bars of many runs are aligned."""
MAX_EVENTS = 5
"""Events of a run that are printed; all of them are in `metrics.jsonl`."""
PACE_SECONDS = 3600.0
"""Rounds of so long ago tell how long the others will take."""


def progress_console() -> Console:
    """The place for progress: the standard error output, or the output of a notebook's cell."""
    console = Console(stderr=True)
    if console.is_jupyter and not can_draw_bars(console):
        # Rich would make a block of HTML of every line, and notebooks colour what goes to standard error.
        return Console(file=sys.stdout, force_jupyter=False, force_terminal=False)
    return console


def can_draw_bars(console: Console) -> bool:
    """True if a console can change what it has shown: a terminal, or a notebook with widgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def accuracy_text(line: Mapping[str, Any]) -> str | None:
    """Mean personalized accuracy in a line of `metrics.jsonl`, if that round was evaluated."""
    figure = line.get("evaluation", {}).get("personalized_accuracy")
    return None if figure is None else f"{100 * figure['mean']:.1f} %"


def progress_observer(label: str) -> Observer:
    """Shows the progress of one run."""
    return RunsProgress()(label, 1, 1)


class RunsProgress:
    """Shows the progress of runs inside its `with` block. Called for each run, it makes an observer."""

    def __init__(self, console: Console | None = None):
        self.console = progress_console() if console is None else console
        self.bars = _make_bars(self.console) if can_draw_bars(self.console) else None
        self.whole: TaskID | None = None
        self.runs = self.finished = 0

    def __enter__(self) -> RunsProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def __call__(self, label: str, number: int, total: int) -> Observer:
        """The observer of run `number` of `total`."""
        self.runs = total
        name = label if total == 1 else f"{number}/{total} {label}"
        if self.bars is None:
            return RunLines(self, name)
        if self.whole is None and total > 1:  # starts here: its thread must not run when processes are forked
            self.whole = self.bars.add_task(f"{total} runs", total=total, count=f"0/{total}", accuracy="")
            self.bars.start()
        return RunBar(self, name, self.bars)


def _make_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", table_column=Column(width=LABEL_WIDTH, no_wrap=True)),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[count]}", justify="right", table_column=Column(min_width=5, no_wrap=True)),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[accuracy]:>7}", style="bold"),
        console=console,
        expand=True,
        transient=True,
        speed_estimate_period=PACE_SECONDS,
    )


@dataclass
class _RunProgress:
    """The progress of one run, however it is shown."""

    shown: RunsProgress
    label: str
    rounds: int = 0
    done: int = 0
    events: int = 0
    """Number of those that were printed."""
    accuracy: str = ""

    def take(self, line: Mapping[str, Any]) -> None:
        """Takes what `metrics.jsonl` says of a round."""
        self._print_events(line)
        self.accuracy = accuracy_text(line) or self.accuracy
        self.done = int(line["round"]) + 1

    def _print_events(self, line: Mapping[str, Any]) -> None:
        run = "" if self.shown.runs == 1 else f"{self.label}, "
        for event in summarize(line["events"]):
            self.events += 1
            text = f"{run}round {line['round']}: {event}"
            if self.events > MAX_EVENTS:
                text = f"{run}more events: see metrics.jsonl"
            if self.events <= MAX_EVENTS + 1:
                self.shown.console.print(f"  {text}", style="yellow", markup=False, highlight=False)


class RunLines(_RunProgress):
    """A line every tenth of the rounds; after the last one how many runs are over, if there are many."""

    def start(self, method: str, rounds: int) -> None:
        """Prints what begins."""
        self.rounds = rounds
        self._print(f"{rounds} rounds")

    def round(self, line: Mapping[str, Any]) -> None:
        """Prints how far the run is, if another tenth is done."""
        self.take(line)
        done, rounds = self.done, self.rounds
        if done * LINES_PER_RUN // rounds > (done - 1) * LINES_PER_RUN // rounds:
            newest = f", accuracy {self.accuracy}" if self.accuracy else ""
            self._print(f"{done} of {rounds} rounds{newest}")

    def finish(self) -> None:
        """Prints how many of several runs are over."""
        shown = self.shown
        shown.finished += 1
        if shown.finished < shown.runs:
            shown.console.print(f"{shown.finished} of {shown.runs} runs are over", highlight=False)

    def _print(self, text: str) -> None:
        self.shown.console.print(f"{self.label}: {text}", markup=False, highlight=False, soft_wrap=True)


class RunBar(_RunProgress):
    """A bar while a run is played; a line above all bars when it is over."""

    def __init__(self, shown: RunsProgress, label: str, bars: Progress):
        super().__init__(shown, label)
        self.bars, self.played, self.began = bars, 0, 0.0
        self.task = TaskID(0)

    def start(self, method: str, rounds: int) -> None:
        """Shows the empty bar."""
        self.rounds, self.began = rounds, time.monotonic()
        self.task = self.bars.add_task(escape(self.label), total=rounds, count=f"0/{rounds}", accuracy="")
        if self.shown.whole is None:
            self.bars.start()

    def round(self, line: Mapping[str, Any]) -> None:
        """Moves on by a round."""
        self.take(line)
        if not self.played:  # rounds of an earlier process say nothing about the pace
            self.bars.reset(self.task, completed=self.done - 1)
        self.played += 1
        count = f"{self.done}/{self.rounds}"
        self.bars.update(self.task, completed=self.done, count=count, accuracy=self.accuracy)

    def finish(self) -> None:
        """Replaces the bar by a line that stays."""
        shown = self.shown
        self.bars.remove_task(self.task)
        shown.console.print(self._last_line(), highlight=False, no_wrap=True, overflow="ellipsis")
        shown.finished += 1
        if shown.whole is None:
            self.bars.stop()
        else:
            self.bars.update(shown.whole, advance=1, count=f"{shown.finished}/{shown.runs}")

    def _last_line(self) -> Text:
        if not self.played:
            text, style = "nothing was left to play", "dim"
        elif self.done < self.rounds:
            text, style = f"stopped after {self.done} of {self.rounds} rounds", "yellow"
        else:
            text, style = f"{self.played} rounds in {_duration(time.monotonic() - self.began)}", "dim"
        told = f"{self.label:<{LABEL_WIDTH}} {text}"  # a long label takes of the room behind the text
        return Text(f"{told:<{LABEL_WIDTH + 27}} {self.accuracy:>8}".rstrip(), style=style)


def _duration(seconds: float) -> str:
    """`0:07`, `12:30`, `3:05:00`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
