"""Clients that leave for good because they gain nothing over the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipfl.core import ClientId
from ipfl.errors import InputError
from ipfl.runs.config import ClientsConfig
from ipfl.runs.metrics import Evaluation

if TYPE_CHECKING:
    from ipfl.runs.result import Result


class Departures:
    """Clients that left for good: PMA ≤ 0 in an evaluation after the grace period (`leave = true`)."""

    def __init__(self, config: ClientsConfig, reference: Result | None):
        if config.leave and reference is None:
            raise InputError(
                "clients.leave = true needs a reference run (ipfl compare, or `reference=` in Python)"
            )
        self.config, self.reference = config, reference
        self.departed: set[ClientId] = set()

    def update(self, evaluation: Evaluation) -> None:
        """Adds the clients that gain nothing over the reference."""
        if self.config.leave and self.reference is not None and evaluation.round >= self.config.grace:
            pma = evaluation.pma(self.reference.reference(evaluation.round)) or {}
            self.departed |= {client for client, value in pma.items() if value <= 0}
