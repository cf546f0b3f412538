"""The hyper-parameters of IP-FL, each documented once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from ipfl.errors import InputError
from ipfl.methods.ipfl.tokens import check_rules

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class IPFLSettings:
    """The fields of `[method]` that belong to IP-FL."""

    clusters: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        2, description="K; auto: start with max_clusters and merge those that serve the same bidders"
    )
    max_clusters: Annotated[int, Field(ge=2)] = Field(6, description="K to start with under clusters = auto")
    merge_after: Annotated[int, Field(ge=1)] = Field(
        10, description="market rounds before the first merge under auto"
    )
    robust: bool = Field(
        False,
        description="expect clients that cheat: limit their claims, let others judge their updates",
    )
    incentive: bool = Field(
        True, description="false: the ablation NI, random bids and no tokens change hands"
    )
    threshold: Share | None = Field(None, description="T_h on the importance weights; omitted: 1/K")
    hits: Literal["soft", "hard"] = Field(
        "soft", description="n_ik by probability of the true class, or by count"
    )
    preference_every: Annotated[int, Field(ge=1)] = Field(1, description="rounds between preference queries")
    preference_samples: Annotated[int, Field(ge=1)] = Field(
        128, description="points a client scores models on, at most"
    )
    feedback: Annotated[float, Field(ge=0)] = Field(
        0.1, description="weight of a client's own past returns in its order of preference"
    )
    mix: Literal["paper", "best", "tuned", "evidence"] = Field(
        "evidence",
        description="how cluster models become a personalized one: by υ; the best alone; "
        "what is best on goal; by υ unless the client's points are evidence for another mix",
    )
    adapt: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="epochs in which a client trains its mix further for itself; 0: no training; "
        "auto: a few, if the client's points are evidence for it",
    )
    n_p: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="N_p, seats per cluster by bid and contribution; omitted: what N_r leaves",
    )
    explore: Share = Field(
        0.2, description="N_r at first, as a share of the clients; falls with the unexplored share"
    )
    explore_floor: Share = Field(0.05, description="N_r never falls under this share of the clients")
    order: Literal["draw", "top"] = Field(
        "draw", description="bidders by weighted draw, or strictly from the top"
    )
    beta: float = Field(2.0, description="weight of the importance in the order of the bidders")
    beta_psi: float = Field(0.5, description="weight of the contribution in the order of the bidders")
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
    contribution: Literal["clients", "server", "exact"] = Field(
        "clients",
        description="gradient from participants or the server's holdout, or exact Shapley values",
    )
    normalised: bool = Field(True, description="normalised or unnormalised Shapley approximation")
    decay: Share = Field(0.5, description="weight of the past in remembered contributions")
    price: Annotated[int, Field(ge=1)] = Field(100, description="τ_p in tokens, the same for all")
    opening: Annotated[int, Field(ge=1)] | None = Field(
        None, description="opening balance; omitted: 100 prices"
    )
    allowance: Annotated[int, Field(ge=0)] = Field(0, description="tokens issued to every client each round")
    eta: Share = Field(0.5, description="η, largest share of a pool that is reimbursed")
    gamma: Share = Field(0.1, description="γ, relative improvement from which on nothing is reimbursed")

    def check(self, *, has_holdouts: bool) -> None:
        """Refuses settings that cannot work together, or not without samples at the server.

        Raises:
            InputError: Which ones.
        """
        check_rules(self.price, self.opening_balance, self.eta, self.gamma)
        if not has_holdouts and (self.initial_clustering or self.contribution == "server"):
            raise InputError('initial_clustering and contribution = "server" need task.server_samples > 0')
        if self.robust and (not self.incentive or self.contribution == "exact"):
            raise InputError('robust = true needs incentive = true and contribution "clients" or "server"')

    @property
    def opening_balance(self) -> int:
        """Tokens that every client starts with."""
        return 100 * self.price if self.opening is None else self.opening

    @property
    def market_opens(self) -> int:
        """Round in which the market opens; before it, all clusters are trained as one model."""
        return max(self.warmup, self.pretrain if self.initial_clustering else 0)
