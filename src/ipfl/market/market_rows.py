"""What a market reports of a round: who bid and contributed what, which tokens moved.

One noun per concept, from the method to the table: each is a typed row, and `metrics.jsonl`, the ledger's
tables, the replay and the export take their columns from its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from ipfl.core.method import HasBooks, Setup
from ipfl.core.records import ClientId, Fact
from ipfl.core.rounds import Event, Seat

TransferKind = Literal["open", "allowance", "bid", "refund", "fee", "reimbursement", "reward"]
"""Why tokens moved, and from which account to which.

- `open`: issuer → client, the opening balance.
- `allowance`: issuer → pool, a subsidy for an update that earns there.
- `bid`: client → escrow, Eq. consumer_cost.
- `refund`: escrow or pool → client: not selected, no valid update, or the round was rolled back.
- `fee`: escrow or client → pool: a seat taken or models sent, Eq. update_available_tokens.
- `reimbursement`: pool → client that paid, Eq. reimbursement.
- `reward`: pool → client that trained, Eq. reward_distribution.
"""


class Bid(NamedTuple):
    """P_B: a client bids for a cluster."""

    client: ClientId
    cluster: int
    rank: int
    """Among the client's own bids: 0 is the most wanted."""
    score: float | None = None
    """How good the cluster's model is on the client's own points, as it said in this round; None: unknown."""
    served: bool = False
    """Whether the client was sent the models in this round, and pays for its bids, seat or no seat."""


class Contribution(NamedTuple):
    """How much a client's update improved the model of its cluster."""

    client: ClientId
    cluster: int
    psi: float | None
    """ψ_ki; None where nobody could tell."""
    omega: int
    """Ω_ki: rounds in which the client has trained in the cluster, this one included."""


class Transfer(NamedTuple):
    """One movement of tokens between two accounts (see `ipfl.market.bank` for their numbers)."""

    kind: TransferKind
    source: int
    target: int
    amount: int
    cluster: int
    """`NO_CLUSTER` where it concerns none."""
    client: ClientId
    """Whose movement it is, also where neither account is the client's (escrow → pool)."""


class Figure(NamedTuple):
    """A number that belongs to one cluster."""

    cluster: int
    value: float | None


@dataclass(frozen=True)
class Market:
    """What a market reports of a round; None: it does not say."""

    transfers: Sequence[Transfer]
    """All tokens that moved, in this order."""
    bids: tuple[Bid, ...] | None = None
    """None while the market is closed."""
    contributions: tuple[Contribution, ...] | None = None
    cluster_probe_accuracy: tuple[Figure, ...] | None = None
    """Acc_kr."""
    best_before: tuple[Figure, ...] | None = None
    """Acc_kmax over earlier rounds."""
    reimbursed_share: tuple[Figure, ...] | None = None
    """U_k."""
    economy: dict[str, float] | None = None
    """Wealth and seats: `gini`, `broke`, `empty_seats`."""

    def line(self) -> dict[str, Any]:
        """The fields that say something, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


ROW_TYPES: Mapping[str, type[NamedTuple]] = {
    "bids": Bid,
    "seats": Seat,
    "contributions": Contribution,
    "transfers": Transfer,
    "cluster_probe_accuracy": Figure,
    "best_before": Figure,
    "reimbursed_share": Figure,
    "events": Event,
}
"""Keys of a round's line in `metrics.jsonl` that hold rows, and their types."""


@dataclass(frozen=True)
class MarketSetup(Setup):
    """What a market's server knows before the first round."""

    balances: Mapping[ClientId, int] = field(default_factory=dict)
    """Tokens that clients bring along from an earlier run; who is not in it opens as usual."""


@runtime_checkable
class HasMarket(HasBooks, Protocol):
    """A method in which tokens move: its opening is made of `Transfer`s, and a round reports a `Market`."""

    def rules(self, state: Any) -> Mapping[str, Fact]:
        """Rules of the market, as an audit of its ledger needs them; the same in all rounds."""
        ...

    @classmethod
    def replay(cls, rules: Mapping[str, Fact], clients: Sequence[ClientId]) -> Any:
        """An `ipfl.ledger.verify.Replay` of a run with these rules, to check a ledger with."""
        ...
