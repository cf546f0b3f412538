"""The hyper-parameters of IP-FL, each documented once, and the presets that set many of them in one word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from ipfl.errors import InputError
from ipfl.market.payments import check_rules

GuardName = Literal["claims", "copies", "lengths", "counts", "clip", "noise"]
"""Guards against clients that cheat; see `ipfl.methods.ipfl_plus.guards`."""
Share = Annotated[float, Field(ge=0, le=1)]
ContributionRule = Literal["momentum", "loo", "clients", "server", "exact"]

WITH_PROBE = "with_probe"
"""Fact of an ask: the client may train on held-back points too."""
MIN_OPENING = 100
"""Prices that every client starts with at least, in a short run."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {
        "payers": "seated",
        "access": "open",
        "trial_rounds": 0,
        "hits": "hard",
        "mix": "paper",
        "order": "top",
        "explore_in": "random",
        "contribution": "clients",
        "standardise": False,
        "decay": 0.5,
        "ration": 0.0,
        "forfeit": False,
        "rewarded": "all",
        "reimburse": "printed",
        "eta": 0.5,
        "subsidy": 0.0,
        "share": 0.0,
        "hold_back": 1.0,
        "robust": False,
    },
}
"""Settings of every preset; what is set beside it counts more."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class IPFLSettings:
    """The fields of `[method]` that belong to IP-FL."""

    preset: Literal["paper"] | None = Field(
        None, description="paper: all rules as they are printed, in one word; other settings still count"
    )
    clusters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="K; auto: start with max_clusters and merge those that serve the same bidders"
    )
    max_clusters: Annotated[int, Field(ge=2)] = Field(6, description="K to start with under clusters = auto")
    merge_after: Annotated[int, Field(ge=1)] = Field(
        10, description="market rounds before the first merge under auto"
    )
    robust: bool | tuple[GuardName, ...] = Field(
        True,
        description="expect clients that cheat; or only some of the guards: "
        + " | ".join(get_args(GuardName)),
    )
    incentive: bool = Field(
        True, description="false: the ablation NI, random bids and no tokens change hands"
    )
    tokens: bool = Field(
        True, description="false: bids as they are, but nobody pays or earns, and all get the models"
    )
    payers: Literal["willing", "seated"] = Field(
        "willing", description="who pays for a cluster: everyone who bids for it, or who gets a seat in it"
    )
    access: Literal["paid", "open"] = Field(
        "paid", description="who gets the round's models: those who paid for at least one, or everyone"
    )
    trial_rounds: Annotated[int, Field(ge=0)] = Field(
        5, description="queries in which a new client gets the models free of charge"
    )
    threshold: Share | None = Field(None, description="T_h on the importance weights; omitted: 1/K")
    hits: Literal["soft", "hard"] = Field(
        "soft", description="n_ik by probability of the true class, or by count"
    )
    preference_every: Annotated[int, Field(ge=1)] = Field(
        1, description="rounds for which a client's bids are kept before it is asked again"
    )
    preference_budget: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="clients that may bid in a round, in turn; omitted: 2 to 4 for each seat, by their cost",
    )
    preference_samples: Annotated[int, Field(ge=1)] = Field(
        128, description="points a client scores models on, at most"
    )
    hold_back: Share = Field(
        0.5,
        description="share of the rounds after which clients also train on the points they score models on, "
        "if train.use_probe lets them",
    )
    feedback: Annotated[float, Field(ge=0)] = Field(
        0.1, description="weight of a client's own past returns in its order of preference"
    )
    mix: Literal["paper", "best", "tuned", "evidence"] = Field(
        "evidence",
        description="how cluster models become a personalized one: by υ; the best alone; "
        "what is best on goal; by υ^4 unless the client's points are evidence for another mix",
    )
    n_p: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="N_p, seats per cluster by bid and contribution; omitted: what N_r leaves",
    )
    explore: Share = Field(
        0.2, description="N_r at first, as a share of the clients; falls with the unexplored share"
    )
    explore_floor: Share = Field(0.05, description="N_r never falls under this share of the clients")
    explore_in: Literal["preferred", "random"] = Field(
        "preferred", description="where explorers train: in the cluster that they prefer, or in any"
    )
    order: Literal["draw", "top"] = Field(
        "draw", description="bidders by weighted draw, or strictly from the top"
    )
    beta: float = Field(2.0, description="weight of the importance in the order of the bidders")
    beta_psi: float = Field(0.5, description="weight of the contribution in the order of the bidders")
    ration: Annotated[float, Field(ge=0)] = Field(
        1.0, description="weight of the seats a client has had against it in the order of the bidders"
    )
    share: Share | Literal["auto"] = Field(
        "auto",
        description="how much of their steps cluster models share; auto: as much as chance explains of their "
        "differences",
    )
    warmup: Annotated[int, Field(ge=0)] = Field(
        0, description="rounds in which all clusters are trained as one model"
    )
    initial_clustering: bool = Field(
        False, description="start from K-Means on per-class F1 (needs task.server_samples)"
    )
    pretrain: Annotated[int, Field(ge=1)] = Field(
        5, description="rounds as one model before initial clustering"
    )
    varied_classes: Annotated[int, Field(ge=1)] = Field(
        10, description="classes with the most varied F1 that K-Means looks at"
    )
    contribution: ContributionRule = Field(
        "momentum",
        description="momentum: agreement with the others' updates; loo: what others lose without it; "
        "the paper's gradient from clients or the server's holdout; exact Shapley values",
    )
    normalised: bool = Field(True, description="normalised or unnormalised Shapley approximation")
    standardise: bool = Field(True, description="remember contributions relative to the others of the round")
    decay: Share = Field(0.9, description="weight of the past in remembered contributions")
    price: Annotated[int, Field(ge=1)] = Field(100, description="τ_p in tokens, the same for all")
    opening: Annotated[int, Field(ge=1)] | None = Field(
        None, description="opening balance; omitted: a price for every round, 100 at least"
    )
    allowance: Annotated[int, Field(ge=0)] = Field(0, description="tokens issued to every client each round")
    subsidy: Annotated[float, Field(ge=0, le=100)] = Field(
        2.0, description="prices issued into a cluster's pool for every update that earns"
    )
    forfeit: bool = Field(
        True, description="who has a seat and delivers nothing loses its price and priority"
    )
    rewarded: Literal["positive", "all"] = Field(
        "positive", description="which providers earn: those with a contribution above 0, or all"
    )
    reimburse: Literal["shortfall", "printed"] = Field(
        "shortfall",
        description="consumers whose own score fell short of their usual one, or all when the cluster's "
        "accuracy did not grow",
    )
    eta: Share = Field(0.1, description="η, largest share of a pool that is reimbursed")
    gamma: Share = Field(0.1, description="γ, relative change from which on nothing, or all, is reimbursed")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, given: Any) -> Any:
        """Settings of the preset where nothing else was given."""
        # Called with keywords, a dataclass of pydantic validates an `ArgsKwargs`; else a mapping.
        has_arguments = hasattr(given, "kwargs")
        named = dict((given.kwargs or {}) if has_arguments else given)
        filled = {**PRESETS.get(str(named.get("preset")), {}), **named}
        return type(given)(given.args, filled) if has_arguments else filled

    def check(
        self, opening: int, *, has_holdouts: bool, has_classes: bool = True, is_noisy: bool = False
    ) -> None:
        """Refuses settings that cannot work together, or not without samples at the server, classes or noise.

        Raises:
            InputError: Which ones.
        """
        check_rules(self.price, opening, self.eta, self.gamma)
        if not has_holdouts and (self.initial_clustering or self.contribution == "server"):
            raise InputError('initial_clustering and contribution = "server" need task.server_samples > 0')
        if self.initial_clustering and not has_classes:
            raise InputError(
                "method.initial_clustering compares clients by class: it needs classes to predict"
            )

        if is_noisy and not isinstance(self.robust, bool) and "noise" in self.robust:
            raise InputError(
                'method.robust names the guard "noise", which would drop every update under privacy.noise'
            )

    def opening_balance(self, rounds: int) -> int:
        """Tokens that every client starts with: a price for every round, if nothing else is set."""
        return max(MIN_OPENING, rounds) * self.price if self.opening is None else self.opening

    def release_round(self, rounds: int) -> int:
        """Round from which on clients may train on held-back points: by then most know where they belong."""
        return math.ceil(self.hold_back * rounds)

    @property
    def subsidy_tokens(self) -> int:
        """Whole tokens that are issued for an update that earns."""
        return round(self.subsidy * self.price)

    @property
    def market_opens(self) -> int:
        """Round in which the market opens; before it, all clusters are trained as one model."""
        return max(self.warmup, self.pretrain if self.initial_clustering else 0)

    @property
    def guards(self) -> frozenset[GuardName]:
        """The guards in use."""
        every: tuple[GuardName, ...] = get_args(GuardName)
        return frozenset((every if self.robust else ()) if isinstance(self.robust, bool) else self.robust)

    @property
    def moves_tokens(self) -> bool:
        """Whether anybody pays or earns."""
        return self.tokens and self.incentive

    @property
    def is_access_paid(self) -> bool:
        """Whether models are for those who pay."""
        return self.moves_tokens and self.access == "paid"
