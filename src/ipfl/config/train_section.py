"""The sections `[train]`, `[adapt]` and `[privacy]`: what clients do, and what of it others may learn."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ipfl.config.sections import Section
from ipfl.errors import InputError

OWN_CODE = r"[^:\s]+:[^:\s]+"
"""`module:callable`, a user's own code."""


class TrainConfig(Section):
    """Local training, the same for all methods."""

    lr: float = Field(0.1, gt=0, description="learning rate, in the first round if it decays")
    batch_size: int = Field(32, ge=1, description="samples per step")
    epochs: int = Field(2, ge=1, description="passes over the client's train part per training")
    optimizer: str = Field(
        "sgd",
        pattern=rf"^(sgd|adam|adamw|{OWN_CODE})$",
        description="sgd | adam | adamw | `module:callable` (parameters, lr) → torch.optim.Optimizer; "
        "its state begins anew with every training",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(
        0.0, ge=0, description="L2 pull towards zero (sgd, adam), or decay beside the gradient (adamw)"
    )
    lr_decay: Literal["constant", "cosine", "step", "diminishing"] = Field(
        "constant",
        description="learning rate over the rounds t = 0, 1, …: lr; lr·(1 + cos(πt/decay_rounds))/2; "
        "lr·decay_factor^⌊t/decay_every⌋; lr/(1 + t/decay_every), the steps of the convergence theorem",
    )
    decay_every: int = Field(
        10, ge=1, description="rounds between two steps down; of diminishing: rounds until lr is half"
    )
    decay_factor: float = Field(0.5, gt=0, le=1, description="what a step down multiplies the rate by")
    decay_rounds: int | None = Field(
        None, ge=1, description="rounds until cosine ends; omitted: those of the run"
    )
    augment: str | None = Field(
        None,
        pattern=rf"^(flip_crop|{OWN_CODE})$",
        description="changes every training batch, anew in every epoch: flip_crop (images), "
        "or `module:callable` (inputs) → inputs",
    )
    loss: str = Field(
        "auto",
        pattern=rf"^(auto|cross_entropy|binary_cross_entropy|mse|mae|huber|{OWN_CODE})$",
        description="auto (cross_entropy, or what fits task.predict) | mse | mae | huber | "
        "`module:callable` (outputs, targets) → a loss per point",
    )
    precision: Literal["float32", "bf16", "auto"] = Field(
        "float32",
        description="of the passes through the network in training; bf16 needs hardware that has it; "
        "auto: bf16 if the processor has instructions for it, else float32",
    )
    device: str = Field(
        "cpu",
        pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$",
        description="where networks are trained: cpu, cuda, cuda:N or mps; auto: a GPU if there is one",
    )
    per_round: int | None = Field(
        None,
        ge=1,
        description="client trainings per round, the budget all methods share; omitted: half of the clients, "
        "or as many as the models need to move (aggregate.min_providers)",
    )
    use_probe: bool = Field(
        False,
        description="methods train on held-back points (probe) as well, if or as soon as they can do without",
    )
    min_clients: int = Field(
        1,
        ge=1,
        description="clients whose updates a round needs; with fewer it is rolled back and nothing is paid",
    )

    @model_validator(mode="after")
    def _refuse_unused_settings(self) -> Self:
        """Refuses settings that the optimizer would ignore."""
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"train.momentum belongs to sgd, not to {self.optimizer!r}; leave it out")
        if self.weight_decay and ":" in self.optimizer:
            raise ValueError("train.weight_decay does not reach your own optimizer: set it there")
        return self

    def check_quorum(self, clients: int) -> None:
        """Refuses a run in which no round could count, because there are too few clients.

        Raises:
            InputError: Which setting is too large.
        """
        if self.min_clients > clients:
            raise InputError(f"train.min_clients = {self.min_clients}, but there are only {clients} clients")

    def at_round(self, round: int) -> TrainConfig:
        """The settings of one round: with its learning rate."""
        if self.lr_decay == "constant":
            return self
        return self.model_copy(update={"lr": self.lr * self.share_of_lr(round)})

    def share_of_lr(self, round: int) -> float:
        """What the learning rate of a round is, as a share of the first one; above 0."""
        if self.lr_decay == "constant":
            return 1.0
        if self.lr_decay == "step":
            return self.decay_factor ** (round // self.decay_every)
        if self.lr_decay == "diminishing":  # Σ η_t = ∞ and Σ η_t² < ∞, as the theorem asks
            return 1 / (1 + round / self.decay_every)
        if self.decay_rounds is None:
            raise ValueError("train.decay_rounds is not known yet")
        # After the last round a client may still train for itself, with the last rate.
        return (1 + math.cos(math.pi * min(round, self.decay_rounds - 1) / self.decay_rounds)) / 2


class AdaptConfig(Section):
    """The last step at every client: what it makes of the network that its method gives it."""

    epochs: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        0,
        description="epochs in which a client trains its network further for itself; auto: five, or twenty "
        "if it goes most of the way to the result; the fewer classes it has, the further it goes",
    )
    lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of that; omitted: train.lr. auto takes a fifth of it, or half of it if "
        "the client goes all of the way",
    )
    label_prior: bool = Field(
        False,
        description="clients add to their network's outputs how often they have each class, as far as their "
        "labels show it and training has not learned it",
    )
    newcomers: bool = Field(
        False, description="also for clients that the federation never met, such as task.unseen"
    )

    @property
    def is_on(self) -> bool:
        """Whether clients do anything."""
        return self.epochs != 0 or self.label_prior

    def on(self) -> AdaptConfig:
        """What `+adapt` behind a method's name stands for: this section, or all of it where it is off."""
        return self if self.is_on else self.model_copy(update={"epochs": "auto", "label_prior": True})

    @model_validator(mode="after")
    def _training_learns_the_prior(self) -> Self:
        if self.label_prior and self.epochs not in (0, "auto"):
            raise ValueError(
                f"adapt.label_prior adds what training leaves out, and adapt.epochs = {self.epochs} goes all "
                'of the way: leave one of them out, or set adapt.epochs = "auto"'
            )
        return self


class PrivacyConfig(Section):
    """What a client's replies may reveal about its points (DP-SGD); nothing is protected by default."""

    noise: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="standard deviation of the noise in every training step and on all else that a client "
        "sends, in multiples of what one of its points can change; 0: no protection",
    )
    clip: float = Field(1.0, gt=0, le=1e6, description="longest gradient of a point; shortened to it")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ, the chance that ε does not hold")
    epsilon: Annotated[float, Field(gt=0)] | None = Field(
        None, description="budget: a client does not answer what would take it beyond this ε; omitted: none"
    )

    @property
    def is_on(self) -> bool:
        """Whether noise protects anything."""
        return self.noise > 0

    @model_validator(mode="after")
    def _budget_needs_noise(self) -> Self:
        if self.epsilon is not None and not self.is_on:
            raise ValueError("privacy.epsilon needs privacy.noise above 0: without noise nothing is private")
        return self
