"""The sections `[adversary]`, `[strategy]` and `[faults]`: how clients are made to cheat and to fail."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from ipfl.config.sections import Section

AttackKind = Literal[
    "free_rider",
    "noisy_free_rider",
    "replay",
    "label_flip",
    "sign_flip",
    "scaled",
    "liar",
    "colluder",
    "sybil",
]
"""What attackers do; `ipfl.stress.attackers` says what each kind does."""


class AdversaryConfig(Section):
    """Clients that cheat, to see what they gain and what they cost the others."""

    share: float = Field(0.0, ge=0, lt=1, description="share of the clients that attack, a seeded choice")
    kind: AttackKind = Field(
        "free_rider", description=f"{' | '.join(get_args(AttackKind))}; see docs/adversaries.md"
    )
    strength: Annotated[float, Field(gt=0)] | None = Field(
        None, description="how hard: a factor whose meaning and default depend on the kind"
    )


Action = Literal["train", "return", "replay", "noise", "buy", "abstain"]
"""What a client that thinks for itself may do in a round; `ipfl.stress.strategy` says what each is."""


class StrategyConfig(Section):
    """Clients that train only if it pays; without `cost` they always behave."""

    cost: Annotated[float, Field(ge=0)] | None = Field(
        None, description="what training a model costs a client; omitted: clients do not ask"
    )
    value: float = Field(1.0, ge=0, description="what a price in tokens is worth to a client")
    actions: tuple[Action, ...] = Field(
        get_args(Action), min_length=1, description="what clients choose from in every round; train is one"
    )

    @field_validator("actions")
    @classmethod
    def _with_training(cls, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        if "train" not in actions or len({*actions}) < len(actions):
            raise ValueError("must name train, and nothing twice")
        return actions

    @property
    def cost_or_0(self) -> float:
        """What training costs."""
        return self.cost or 0.0


Probability = Annotated[float, Field(ge=0, le=1)]


class FaultsConfig(Section):
    """Clients that fail, for tests and drills; none by default. See docs/faults.md."""

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

    @property
    def has_client_faults(self) -> bool:
        """Whether any client fails."""
        return bool(self.dropout or self.slow or self.crash or self.broken)
