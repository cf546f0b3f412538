"""The sections `[adversary]` and `[faults]` of a config: what clients, disk and store are made to do wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ipfl.core.sections import Section


class AdversaryConfig(Section):
    """Clients that cheat, to see what they gain and what they cost the others."""

    share: float = Field(0.0, ge=0, lt=1, description="share of the clients that attack, a seeded choice")
    kind: Literal[
        "free_rider", "noisy_free_rider", "label_flip", "sign_flip", "scaled", "liar", "colluder", "sybil"
    ] = Field(
        "free_rider",
        description="free_rider | noisy_free_rider | label_flip | sign_flip | scaled | liar | colluder | "
        "sybil; see docs/adversaries.md",
    )
    strength: Annotated[float, Field(gt=0)] | None = Field(
        None, description="how hard: a factor whose meaning and default depend on the kind"
    )


Probability = Annotated[float, Field(ge=0, le=1)]
Rounds = tuple[Annotated[int, Field(ge=0)], ...]


class FaultsConfig(Section):
    """Faults to inject, for tests and drills; none by default. See docs/faults.md."""

    dropout: Probability = Field(
        0.0, description="share of the clients that drop out, drawn anew in every round"
    )
    dropout_when: tuple[Literal["before", "during", "after"], ...] = Field(
        ("before", "during", "after"), min_length=1, description="in relation to training, drawn for each"
    )
    slow: Probability = Field(0.0, description="share whose answers of the round come after the deadline")
    crash: Probability = Field(0.0, description="share whose worker process is killed while they train")
    broken: Probability = Field(0.0, description="share of the replies that are broken")
    broken_kinds: tuple[Literal["nan", "infinite", "shape", "enormous", "duplicate"], ...] = Field(
        ("nan", "infinite", "shape", "enormous", "duplicate"), min_length=1, description="how, drawn for each"
    )
    full_disk: Rounds = Field((), description="rounds whose commit finds the disk full")
    store_down: Rounds = Field((), description="rounds whose commit cannot reach the run store")
    outage: float = Field(2.0, gt=0, description="seconds that full_disk and store_down last")

    @property
    def has_client_faults(self) -> bool:
        """Whether clients fail, and not only disk or store."""
        return bool(self.dropout or self.slow or self.crash or self.broken)
