"""What a run revealed about its clients' points, for `summary.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ipfl.config.train_section import PrivacyConfig
from ipfl.play.loop import Callback, RoundLoop


class PrivacyReport(Callback):
    """`privacy` in `summary.json`."""

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """Adds it to the summary."""
        summary["privacy"] = privacy_report(loop.config.privacy, loop.history)


def privacy_report(config: PrivacyConfig, history: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The ε of every client that sent anything, as it said last.

    Returns:
        `delta`; `epsilon`: by client; `largest_epsilon`; `spent`: clients that stopped answering.
    """
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
