"""Progress of a comparison: the whole and every run that is being played; lines where there is no terminal.

12/42 ditto, seed 0      30 rounds in 0:41            24.1 %
42 runs                  ━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━  12/42   9:02 left
13/42 fedem, seed 0      ━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━  17/30   0:21 left   41.0 %
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from ipfl.report.progress import (
    LABEL_WIDTH,
    ProgressLines,
    accuracy_text,
    can_draw_bars,
    print_events,
    print_note,
)
from ipfl.results.result import Observer

Clock = Callable[[], float]


def format_seconds(seconds: float) -> str:
    """`0:07`, `12:30`, `3:05:00`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class Pace:
    """How fast rounds are played, and when all will be."""

    rounds: int
    """In all."""
    started: float
    played: int = 0
    skipped: int = 0
    """Rounds that need not be played: an earlier process did, or the run ended before."""
    due: float | None = None
    """When all will be played, at the pace so far; None: nothing was played yet."""

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return self.played + self.skipped

    def add(self, now: float, played: int = 0, skipped: int = 0) -> None:
        """Rounds are over."""
        self.played, self.skipped = self.played + played, self.skipped + skipped
        if self.played:
            self.due = now + (now - self.started) / self.played * (self.rounds - self.done)

    def text(self, now: float) -> str:
        """The time left."""
        return "–:–– left" if self.due is None else f"{format_seconds(self.due - now)} left"


@dataclass
class ComparisonPace:
    """The pace of a comparison as a whole."""

    clock: Clock
    runs: int = 0
    finished: int = 0
    pace: Pace | None = None
    """None: no run has begun."""

    def begin_run(self, rounds: int) -> Pace:
        """The pace of a run that begins."""
        now = self.clock()
        if self.pace is None:
            self.pace = Pace(rounds * self.runs, now)
        return Pace(rounds, now)

    def add_round(self, run: Pace, number: int) -> None:
        """Round `number` of a run is over; if others before it were not played, they were earlier."""
        self._add(run, played=1, skipped=number - run.done)

    def end_run(self, run: Pace) -> None:
        """A run is over; what it has not played nobody will."""
        self._add(run, skipped=run.rounds - run.done)
        self.finished += 1

    def _add(self, run: Pace, played: int = 0, skipped: int = 0) -> None:
        assert self.pace is not None
        now = self.clock()
        run.add(now, played, skipped)
        self.pace.add(now, played, skipped)

    def text(self) -> str:
        """The time left."""
        return "" if self.pace is None else self.pace.text(self.clock())


class ComparisonProgress:
    """Shows the progress of a comparison inside its `with` block. Called for each run, it makes an observer.

    Args:
        console: Where to.
        clock: Seconds that only grow.
    """

    def __init__(self, console: Console, clock: Clock = time.monotonic):
        self.console, self.pace = console, ComparisonPace(clock)
        self.bars = _make_bars(console, clock) if can_draw_bars(console) else None
        self.whole: TaskID | None = None

    def __enter__(self) -> ComparisonProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def __call__(self, label: str, number: int, total: int) -> Observer:
        """The observer of run `number` of `total`."""
        self.pace.runs = total
        if self.bars is None:
            return _RunLines(self.console, label, f"{number}/{total} ", self.pace)
        if self.whole is None:  # begins here, so that its thread is not there when processes are forked
            self.whole = self.bars.add_task(
                f"{total} runs", total=1, count=f"0/{total}", pace=None, accuracy=""
            )
            self.bars.start()
        return _RunBar(self, f"{number}/{total} {label}")

    def show_whole(self) -> None:
        """Brings the line of the whole up to date."""
        pace = self.pace.pace
        if self.bars is None or self.whole is None or pace is None:
            return
        count = f"{self.pace.finished}/{self.pace.runs}"
        self.bars.update(self.whole, total=pace.rounds, completed=pace.done, count=count, pace=pace)


class _TimeLeft(ProgressColumn):
    """The time left of a task."""

    max_refresh = 0.5

    def __init__(self, clock: Clock):
        super().__init__(Column(no_wrap=True, justify="right", min_width=len("59:59 left")))
        self.clock = clock

    def render(self, task: Task) -> Text:
        pace: Pace | None = task.fields["pace"]
        return Text("" if pace is None else pace.text(self.clock()), style="progress.remaining")


class _Bars(Progress):
    """Bars that leave room for the `^C` that terminals print: in the next line, it would move all bars."""

    def __init__(self, console: Console, *columns: ProgressColumn):
        self._terminal = console  # the constructor of Progress makes a table already
        super().__init__(*columns, console=console, expand=True, transient=True)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        table = super().make_tasks_table(tasks)
        table.width = max(1, self._terminal.width - len("^C") - 1)
        return table


def _make_bars(console: Console, clock: Clock) -> Progress:
    return _Bars(
        console,
        TextColumn("{task.description}", table_column=Column(width=LABEL_WIDTH, no_wrap=True)),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[count]}", justify="right", table_column=Column(min_width=5, no_wrap=True)),
        _TimeLeft(clock),
        TextColumn("{task.fields[accuracy]:>7}", style="bold"),
    )


@dataclass
class _RunBar:
    """A line with a bar while a run is played; a line above all bars when it is over."""

    shown: ComparisonProgress
    label: str
    printed: int = 0
    accuracy: str = ""
    pace: Pace = field(default_factory=lambda: Pace(0, 0.0))
    task: TaskID | None = None

    def start(self, method: str, rounds: int) -> None:
        """Shows the empty bar."""
        assert self.shown.bars is not None
        self.pace = self.shown.pace.begin_run(rounds)
        self.task = self.shown.bars.add_task(
            escape(self.label), total=rounds, count=f"0/{rounds}", pace=self.pace, accuracy=""
        )
        self.shown.show_whole()

    def round(self, line: Mapping[str, Any]) -> None:
        """Moves on by a round."""
        assert self.shown.bars is not None
        assert self.task is not None
        self.printed = print_events(self.shown.console, line, self.printed, self.label)
        self.accuracy = accuracy_text(line) or self.accuracy
        self.shown.pace.add_round(self.pace, line["round"])
        count = f"{self.pace.done}/{self.pace.rounds}"
        self.shown.bars.update(self.task, completed=self.pace.done, count=count, accuracy=self.accuracy)
        self.shown.show_whole()

    def finish(self) -> None:
        """Replaces the bar by a line that stays."""
        assert self.shown.bars is not None
        assert self.task is not None
        self.shown.bars.remove_task(self.task)
        self.shown.console.print(self._last_line(), highlight=False, no_wrap=True, overflow="ellipsis")
        self.shown.pace.end_run(self.pace)
        self.shown.show_whole()

    def note(self, text: str) -> None:
        """A line above the bars."""
        print_note(self.shown.console, self.label, text)

    def _last_line(self) -> Text:
        pace, seconds = self.pace, self.shown.pace.clock() - self.pace.started
        if not pace.played:
            text, style = "nothing was left to play", "dim"
        elif pace.done < pace.rounds:
            text, style = f"stopped after {pace.done} of {pace.rounds} rounds", "yellow"
        else:
            text, style = f"{pace.played} rounds in {format_seconds(seconds)}", "dim"
        told = f"{self.label:<{LABEL_WIDTH}} {text}"  # a long label takes of the room behind the text
        return Text(f"{told:<{LABEL_WIDTH + 27}} {self.accuracy:>8}".rstrip(), style=style)


class _RunLines(ProgressLines):
    """Lines of a run; when it is over, one about the whole."""

    def __init__(self, console: Console, label: str, prefix: str, whole: ComparisonPace):
        super().__init__(console, label, prefix)
        self.whole, self.pace = whole, Pace(0, 0.0)

    def start(self, method: str, rounds: int) -> None:
        """Prints what begins."""
        super().start(method, rounds)
        self.pace = self.whole.begin_run(rounds)

    def round(self, line: Mapping[str, Any]) -> None:
        """Prints how far the run is, if another tenth is done."""
        super().round(line)
        self.whole.add_round(self.pace, line["round"])

    def finish(self) -> None:
        """Prints how far the comparison is."""
        self.whole.end_run(self.pace)
        if self.whole.finished < self.whole.runs:
            text = f"{self.whole.finished} of {self.whole.runs} runs are over, {self.whole.text()}"
            self.console.print(text, highlight=False, soft_wrap=True)
