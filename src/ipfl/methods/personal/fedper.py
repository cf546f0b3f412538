"""FedPer: the body of the network is federated, each client has a head of its own.

Arivazhagan, Aggarwal, Singh, Choudhary, Federated Learning with Personalization Layers, 2019. In a round the
clients train (W_B, W_Pj) together by SGD (Algorithm 1, ClientUpdate), and the server sets
W_B ← Σ_j γ_j W_B,j with γ_j = n_j / Σ_i n_i (Algorithm 1, line 6). W_Pj never travels.

The personalization layers W_P are the network's `head`, by default its last linear layer (K_P = 1); a module
whose attribute `parts` names more layers as its head has these.

Departures:
- In each round some clients train, not all; a client that was not asked keeps its head as it was.
- All heads start from the run's initial parameters, not from random ones for each client.
- A client that never trained predicts with a head that it trains at once, on the body as it is.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from ipfl.methods.shared.shared_part import SharedPartMethod


@dataclass(frozen=True)
class FedPer(SharedPartMethod):
    """One body for all, and a head for each (Arivazhagan et al. 2019)."""

    name: ClassVar[str] = "fedper"
    summary: ClassVar[str] = "one body for all, a head for each client (Arivazhagan et al. 2019)"
    stays: ClassVar[str] = "head"
    needs_parts: ClassVar[tuple[str, ...]] = ("head", "body")
