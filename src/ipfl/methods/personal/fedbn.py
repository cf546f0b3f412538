"""FedBN: all of the network is federated but its normalization layers.

Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
2021, Algorithm 1: for every layer that is no BatchNorm w^(l) ← mean of the clients' w_k^(l); γ, β and the
running mean and variance of a BatchNorm stay as each client has them. It is made for feature shift: the same
classes look different at every client.

What stays is the part `norms`: layers of BatchNorm, and in networks that have GroupNorm or LayerNorm these. A
network without any is refused: there FedBN is FedAvg.

Departures:
- In each round some clients train, not all, and the mean is weighed by their numbers of samples, as FedAvg's.
- A client that never trained predicts with norms that it trains at once, on the other layers as they are: the
  paper has no model for it.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from ipfl.methods.shared.shared_part import SharedPartMethod


@dataclass(frozen=True)
class FedBN(SharedPartMethod):
    """One network for all but for its norms, which each client has of its own (Li et al. 2021)."""

    name: ClassVar[str] = "fedbn"
    summary: ClassVar[str] = "one network, each client with normalization layers of its own (Li et al. 2021)"
    stays: ClassVar[str] = "norms"
    needs_parts: ClassVar[tuple[str, ...]] = ("norms", "not norms")
