"""Clients that come late, or leave for good because they gain nothing over the reference.

Who leaves changes how the others are trained. So it is decided on `goal`, a client's own sample of what it
wants to be good at, and never on test data, which measure the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipfl.core import stream
from ipfl.errors import InputError
from ipfl.play.loop import Callback, RoundLoop
from ipfl.play.metrics import Evaluation

if TYPE_CHECKING:
    from ipfl.results.result import Result

JOIN_SHARE = 0.2
"""Share of the clients that come late (`clients.join_round`)."""


class Arrivals(Callback):
    """Clients that join in the middle of a run (`clients.join_round`); a seeded choice."""

    def begin(self, loop: RoundLoop) -> None:
        """Those that have not joined yet are away."""
        clients = loop.task.data.clients
        count = round(JOIN_SHARE * len(clients))
        chosen = stream(loop.config.seed, "late").choice(clients, count, replace=False)
        loop.late = {int(client) for client in chosen}
        self._update(loop)

    def round(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """In their round they are there."""
        self._update(loop)

    def _update(self, loop: RoundLoop) -> None:
        if len(loop.history) >= (loop.config.clients.join_round or 0):
            loop.late = set()


class Departures(Callback):
    """Clients that left for good (`clients.leave = true`).

    They do so after an evaluation, from the grace period on, in which their model was no better on their
    `goal` than that of the reference.
    """

    def __init__(self, reference: Result | None):
        if reference is None:  # before anything of the run is written
            raise InputError(
                "clients.leave = true needs a reference run: a comparison has one, `ipfl.run` takes one"
            )

    def begin(self, loop: RoundLoop) -> None:
        """Those that left in an earlier process stay away."""
        for evaluation in loop.evaluations.values():
            self._update(loop, evaluation)

    def round(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """Adds the clients that gain nothing."""
        if line["round"] in loop.evaluations:
            self._update(loop, loop.evaluations[line["round"]])

    def _update(self, loop: RoundLoop, evaluation: Evaluation) -> None:
        if loop.reference is None or evaluation.round < loop.config.clients.grace:
            return
        reference = loop.reference.evaluation_at(evaluation.round)
        known = {} if reference is None else reference.goal
        loop.departed |= {c for c, hits in evaluation.goal.items() if c in known and hits <= known[c]}
