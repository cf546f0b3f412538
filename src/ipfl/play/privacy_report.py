"""What a run revealed about its clients' points, for `summary.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ipfl.config.train_section import PrivacyConfig


def privacy_report(config: PrivacyConfig, history: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The ε of every client that sent anything, as it said last; None without `[privacy]`.

    Returns:
        `delta`; `epsilon`: by client; `largest_epsilon`; `spent`: clients that stopped answering.
    """
    if not config.is_on:
        return None
    epsilon: dict[int, float] = {}
    spent: set[int] = set()
    for line in history:
        for client, value in line.get("epsilon", ()):
            epsilon[client] = max(value, epsilon.get(client, 0.0))
        spent |= {event.client for event in line["events"] if event.kind == "budget_spent"}
    return {
        "delta": config.delta,
        "epsilon": {str(client): epsilon[client] for client in sorted(epsilon)},
        "largest_epsilon": max(epsilon.values(), default=0.0),
        "spent": sorted(spent),
    }
