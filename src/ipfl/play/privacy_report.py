"""What a run revealed about its clients' points, for `summary.json`."""

from __future__ import annotations

from typing import Any

from ipfl.play.loop import Callback, RoundLoop


class PrivacyReport(Callback):
    """`privacy` in `summary.json`."""

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """Adds the ε of every client that sent anything, as it said last, and who stopped answering."""
        epsilon: dict[int, float] = {}
        spent: set[int] = set()
        for line in loop.history:
            for client, value in line.get("epsilon", ()):
                epsilon[client] = max(value, epsilon.get(client, 0.0))
            spent |= {event.client for event in line["events"] if event.kind == "budget_spent"}
        summary["privacy"] = {
            "delta": loop.config.privacy.delta,
            "epsilon": {str(client): epsilon[client] for client in sorted(epsilon)},
            "largest_epsilon": max(epsilon.values(), default=0.0),
            "spent": sorted(spent),
        }
