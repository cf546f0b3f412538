"""FedAvg: one global model, the sample-weighted mean of locally trained copies.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
Algorithm 1. Its accuracy per client is the paper's threshold ρ_i for PMA. Round, training and model are those
of `OneModelMethod`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from ipfl.methods.shared.one_model import OneModelMethod


@dataclass(frozen=True)
class FedAvg(OneModelMethod):
    """One model for all (McMahan et al. 2017)."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "one global model, the mean of local copies (McMahan et al. 2017)"
