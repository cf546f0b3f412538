"""What a run leaves in memory: its summary, its history, its models; and what watches it while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ipfl.core import ClientId, Vector
from ipfl.runs.metrics import Evaluation

Line = dict[str, Any]
"""What `metrics.jsonl` says of a round, with typed rows (`ipfl.core.rounds.ROW_TYPES`)."""


class Observer(Protocol):
    """Told how a run goes on: a progress bar, a logger, a test."""

    def start(self, method: str, rounds: int) -> None:
        """The first round is about to begin."""

    def round(self, line: Mapping[str, Any]) -> None:
        """A round is over; `line` is what `metrics.jsonl` says of it."""

    def finish(self) -> None:
        """The run is over, however it ended."""


@dataclass(frozen=True)
class Result:
    """A finished (or interrupted) run."""

    summary: dict[str, Any]
    history: list[Line]
    """A line per round."""
    evaluations: dict[int, Evaluation]
    """By round."""
    state: Any
    models: Mapping[str, Vector] = field(default_factory=dict)

    @property
    def last(self) -> Evaluation | None:
        """The evaluation after the last round."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def personalized_accuracy(self) -> float | None:
        """Mean accuracy over clients of their personalized models, after the last round."""
        figure = self.summary["personalized_accuracy"]
        return None if figure is None else float(figure["mean"])

    def evaluation_at(self, round: int) -> Evaluation | None:
        """The newest evaluation up to that round."""
        known = [r for r in self.evaluations if r <= round]
        return self.evaluations[max(known)] if known else None

    def reference(self, round: int) -> Mapping[ClientId, float] | None:
        """Accuracies ρ_i for PMA: those of the newest evaluation up to that round."""
        evaluation = self.evaluation_at(round)
        return None if evaluation is None else evaluation.personalized
