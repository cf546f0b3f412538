"""What a check of a ledger finds."""

from __future__ import annotations

from dataclasses import dataclass

from ipfl.ledger.schema import OPENING


@dataclass(frozen=True)
class Finding:
    """The first thing that is wrong."""

    round: int | None
    """None where it concerns the whole run."""
    sequence: int | None
    """Of the transfer, or of the row that `what` names; None where it concerns the round as a whole."""
    what: str

    def __str__(self) -> str:
        if self.round is None:
            return self.what
        place = "opening" if self.round == OPENING else f"round {self.round}"
        entry = "" if self.sequence is None else f", entry {self.sequence}"
        return f"{place}{entry}: {self.what}"
