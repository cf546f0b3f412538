"""The base of everything that watches a run, or takes part in it between its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipfl.play.loop import RoundLoop
    from ipfl.results.result import Observer


class Callback:
    """Called by the round loop; each of these functions may be left as it is.

    Callbacks are called in the order in which they are given.
    """

    def begin(self, loop: RoundLoop) -> None:
        """Before the first round that this process plays; a callback that keeps rounds restores them here."""

    def keep(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """Makes a round outlive the process, before anybody hears of it and clients forget older ones."""

    def round(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """After each whole round; `line` is what `metrics.jsonl` says of it."""

    def close(self) -> None:
        """No more rounds, however they ended."""

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """After the last round: may add to the summary."""


class Watching(Callback):
    """An observer, told how the run goes on."""

    def __init__(self, observer: Observer):
        self.observer = observer

    def begin(self, loop: RoundLoop) -> None:
        """Tells it that the first round is about to begin."""
        self.observer.start(loop.method.name, loop.config.rounds)

    def round(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """Tells it of a round."""
        self.observer.round(line)

    def close(self) -> None:
        """Tells it that there are no more."""
        self.observer.finish()
