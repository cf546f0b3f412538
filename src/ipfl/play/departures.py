"""Clients that leave for good because they gain nothing over the reference, as far as they can know.

Who leaves changes how the others are trained. So it is decided on `goal`, a client's own sample of what it
wants to be good at, and never on test data, which measure the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipfl.config.run_config import ClientsConfig
from ipfl.core import ClientId
from ipfl.errors import InputError
from ipfl.play.metrics import Evaluation

if TYPE_CHECKING:
    from ipfl.results.result import Result


class Departures:
    """Clients that left for good (`leave = true`).

    They do so after an evaluation, from the grace period on, in which their model was no better on their
    `goal` than that of the reference.
    """

    def __init__(self, config: ClientsConfig, reference: Result | None):
        if config.leave and reference is None:
            raise InputError(
                "clients.leave = true needs a reference run: a comparison has one, `ipfl.run` takes one"
            )
        self.config, self.reference = config, reference
        self.departed: set[ClientId] = set()

    def update(self, evaluation: Evaluation) -> None:
        """Adds the clients that gain nothing over the reference."""
        if self.config.leave and self.reference is not None and evaluation.round >= self.config.grace:
            reference = self.reference.evaluation_at(evaluation.round)
            known = {} if reference is None else reference.goal
            self.departed |= {
                c for c, accuracy in evaluation.goal.items() if c in known and accuracy <= known[c]
            }
