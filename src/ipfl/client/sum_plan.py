"""What the server says of a secure sum, and what a client may believe of it.

See `ipfl.client.secure_sum` for the protocol.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipfl.core import ClientId
from ipfl.core.masks import neighbours
from ipfl.core.ring import SumLayout

SUM_KEYS, SUM_SHARES, SUM_AGREE, SUM_OPEN = "sum_keys", "sum_shares", "sum_agree", "sum_open"
"""Steps of a sum beside the method's own action."""
SUM_PLAN = "sum_plan"
"""The fact that says which sum a record belongs to, and what a client must know of it."""
MASKED = "masked"
"""Name of the vector that leaves a client."""
MIN_CLIENTS = 3
"""Clients that a sum must be asked of, and that must hold every vector of it."""
MIN_DELIVERED = 2
"""Clients whose reply must be in a sum that is opened: one alone would be no secret."""
MAX_NEIGHBOURS = 32
"""Clients that share a client's secrets, and whose masks are paired with its own, at most."""


@dataclass(frozen=True)
class SumPlan:
    """What the server says of a sum; it grows from step to step."""

    session: str
    """Round and number of the sum."""
    threshold: int = 0
    """Shares that are needed."""
    keys: Mapping[int, list[str]] | None = None
    """Public keys of all who began, in the order of the ring."""
    members: tuple[int, ...] = ()
    """Those of them that shared their secrets."""
    holders: Mapping[str, list[int]] | None = None
    """Who sends which vector."""
    layout: SumLayout | None = None

    def text(self) -> str:
        """As it travels."""
        layout = self.layout
        return json.dumps(
            {
                "session": self.session,
                "threshold": self.threshold,
                "keys": [[client, key] for client, key in (self.keys or {}).items()],
                "members": self.members,
                "holders": dict(self.holders or {}),
                "layout": None if layout is None else [dict(layout.vectors), dict(layout.facts), layout.bits],
            }
        )

    @classmethod
    def read(cls, text: str) -> SumPlan:
        """What `text` wrote."""
        found: dict[str, Any] = json.loads(text)
        layout = found["layout"]
        return cls(
            found["session"],
            found["threshold"],
            {int(client): key for client, key in found["keys"]},
            tuple(found["members"]),
            found["holders"],
            None if layout is None else SumLayout(*layout),
        )

    def digest(self) -> str:
        """By which it is recognised in the next step."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def of_keys(self) -> SumPlan:
        """The plan as it was when secrets were shared: who has which keys."""
        return replace(self, members=(), holders=None, layout=None)

    def neighbours(self, client: ClientId) -> list[ClientId]:
        """Who shares secrets and masks with a client."""
        return neighbours(list(self.keys or {}), client, MAX_NEIGHBOURS)

    def holders_of_shares(self, client: ClientId) -> list[ClientId]:
        """Who has a share of a client's secrets: its neighbours and itself, ascending."""
        return sorted([*self.neighbours(client), client])

    def holders_left(self, client: ClientId) -> list[ClientId]:
        """Those of `holders_of_shares` that shared their own secrets too."""
        return [one for one in self.holders_of_shares(client) if one in self.members]

    def agreement(self, delivered: Iterable[ClientId]) -> str:
        """What clients agree on before they open a sum: who delivered, and all else that is said of it."""
        return hashlib.sha256(json.dumps([self.digest(), sorted(delivered)]).encode()).hexdigest()

    def is_sound(self) -> bool:
        """Whether those that it says take part are among those whose keys it has, and enough of them."""
        members, held = set(self.members), (self.holders or {}).values()
        return members <= (self.keys or {}).keys() and all(
            members.issuperset(of) and len(set(of)) >= MIN_CLIENTS for of in held
        )

    def may_open(self, delivered: set[int], client: ClientId) -> bool:
        """Whether the sum of those that delivered hides each of them, as a client sees it.

        Only members count: names that nobody has could make a sum of one look like a sum of many.
        """
        real = delivered.intersection(self.members)
        near = real.intersection(self.holders_of_shares(client))
        return len(near) >= max(self.threshold, MIN_DELIVERED) and all(
            len(real.intersection(of)) >= MIN_DELIVERED for of in (self.holders or {}).values()
        )
