"""FedProx: FedAvg whose clients are held near the global model, and may do only a part of the work.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2. Client i minimizes

    h_i(w; w^t) = F_i(w) + μ/2·‖w − w^t‖²

inexactly, from the global model w^t that it received. Stragglers do so less exactly, with fewer epochs, and
what they did is kept instead of dropped. As in the paper's experiments, `stragglers` is a share of the chosen
clients, each of which does a number of epochs drawn uniformly from 1 … E; the clients are chosen uniformly
and their replies weighed by sample counts.

Departures:
- No stragglers by default, so that all methods have the same budget. The paper tries shares of 0, 0.5, 0.9.
- The server, which does not know E, draws a share of the work; the client turns it into epochs.
- μ is fixed; the paper's heuristic that changes it by the loss (its Section 5.3.2) is left out.

Of 0.001, 0.01, 0.1 and 1 the paper finds a large μ best where its steps are small (images, lr ≤ 0.03), and a
small one where they are large (text, lr ≥ 0.3). The default goes with this project's lr of 0.1, where μ = 1
slows the learning of letters down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from ipfl.client.client import Client
from ipfl.core import ClientId, Fact, Record, stream
from ipfl.methods.shared.one_model import GlobalModel, OneModelMethod
from ipfl.training.sgd import Pull


@dataclass(frozen=True)
class FedProx(OneModelMethod):
    """One model for all, with a proximal pull and partial work (Li et al. 2020)."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a pull towards the global model and partial work (Li et al. 2020)"

    mu: float = Field(
        0.01,
        ge=0,
        allow_inf_nan=False,
        description="μ, strength of the pull; the paper tunes it in 0.001, 0.01, 0.1, 1",
    )
    stragglers: float = Field(
        0.0, ge=0, le=1, description="share of the chosen clients that do only a random part of the epochs"
    )

    def instructions(
        self, state: GlobalModel, chosen: list[ClientId], round: int
    ) -> Mapping[ClientId, Mapping[str, Fact]]:
        """Stragglers get the share of the work that they will do."""
        rng = stream(state.seed, "stragglers", round)
        slow = rng.permutation(chosen)[: int(self.stragglers * len(chosen) + 0.5)]
        return {int(client): {"work": float(rng.random())} for client in slow}

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Local training within reach of the global model, for all epochs or a straggler's 1 … E of them."""
        shared, work = ask.params["global"], ask.facts.get("work")
        epochs = None if work is None else 1 + int(work * me.settings.epochs)
        return self.update(me.train(shared, epochs=epochs, pull=Pull(shared, self.mu)), me), mine
