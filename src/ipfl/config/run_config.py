"""The settings of a run; scripts rely on their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from ipfl import methods
from ipfl.config.sections import AggregateConfig, Section
from ipfl.config.train_section import AdaptConfig, PrivacyConfig, TrainConfig

if TYPE_CHECKING:
    from ipfl.core import Method


MAX_SEED = 2**63 - 1
"""Largest seed."""
ADAPTED = "+adapt"
"""Behind the name of a method: with the last step at its clients."""


class EvaluateConfig(Section):
    """When and on whom models are evaluated on test data."""

    every: int = Field(
        6,
        ge=1,
        description="every so many rounds, and always the last; those before it without the last step at the "
        "clients ([adapt]), unless clients.leave or patience decides by them",
    )
    clients: int | None = Field(
        None, ge=1, description="evaluate on so many clients, a seeded choice; omitted: all"
    )
    holdout: int = Field(
        500, ge=1, description="test samples per distribution for the accuracy of server models"
    )
    metrics: tuple[str, ...] | None = Field(
        None,
        description="reported beside the accuracy: accuracy | balanced_accuracy | macro_f1 | auroc | "
        "log_loss | mae | r2 | `module:callable` (truth, predicted) → number; omitted: what is usual for "
        "the target",
    )


class ClientsConfig(Section):
    """How clients behave."""

    leave: bool = Field(
        False,
        description="clients leave for good if their model is no better on their goal than the reference's",
    )
    grace: int = Field(10, ge=0, description="rounds before a client may leave")
    join_round: int | None = Field(
        None,
        ge=1,
        description="round at which a fifth of the clients join; omitted: all are there from the start",
    )
    deadline: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds for an answer, by the clock; clients that take longer are left out"
    )


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


class RunConfig(Section):
    """How a method is run: how long, how clients train, when it is evaluated, what goes wrong."""

    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="decides everything random: partition, initial parameters, selections, shuffles",
    )
    rounds: int = Field(30, ge=1, description="number of rounds")
    patience: int | None = Field(
        None,
        ge=1,
        description="stop after so many rounds without better models on clients' goals; omitted: never",
    )
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    clients: ClientsConfig = Field(default_factory=ClientsConfig)
    adapt: AdaptConfig = Field(default_factory=AdaptConfig)
    aggregate: AggregateConfig = Field(default_factory=AggregateConfig)
    privacy: PrivacyConfig = Field(default_factory=PrivacyConfig)
    adversary: AdversaryConfig = Field(default_factory=AdversaryConfig)
    strategy: StrategyConfig = Field(default_factory=StrategyConfig)
    faults: FaultsConfig = Field(default_factory=FaultsConfig)

    @model_validator(mode="after")
    def _goal_is_not_trained_on(self) -> Self:
        """What clients decide by must be new to their models: probe and goal mostly hold the same points."""
        if self.train.use_probe and (self.clients.leave or self.patience is not None):
            decider = "clients.leave = true" if self.clients.leave else "patience"
            raise ValueError(f"{decider} decides by points that train.use_probe = true trains on")
        return self

    @model_validator(mode="after")
    def _cosine_ends_with_the_run(self) -> Self:
        """What the clients need to know of the run's length goes with the settings that they get."""
        if self.train.lr_decay == "cosine" and self.train.decay_rounds is None:
            train = self.train.model_copy(update={"decay_rounds": self.rounds})
            object.__setattr__(self, "train", train)  # the section is frozen from now on
        return self

    def row_name(self, method: Method[Any]) -> str:
        """The name of a run of this method in tables: with `+adapt` if its clients take a last step."""
        return method.name + (ADAPTED if self.adapt.is_on else "")

    def record(self, built: Iterable[Method[Any]]) -> dict[str, Any]:
        """The effective config for `summary.json`, with all hyper-parameters of the methods."""
        every = [methods.method_settings(one) for one in built]
        return {**self.model_dump(mode="json"), "method": every[0] if len(every) == 1 else every}
