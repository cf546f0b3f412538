"""Clients that fail or cheat on purpose: wrappers around the runner, `Faulty(Cheating(ClientRunner(…)))`.

Also outages of disk and store (`faults.Outage`). Imports `ipfl.client` and what is below it; knows no method
and no engine. The round loop puts the wrappers together (`make_wrapper`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipfl.client.runner import ClientRunner, Runner
    from ipfl.stress.attackers import Adversary
    from ipfl.stress.faults import FaultPlan


def make_wrapper(
    adversary: Adversary | None, plan: FaultPlan | None
) -> Callable[[ClientRunner], Runner] | None:
    """Puts attackers and faults around a runner; None if there are neither."""
    if adversary is None and plan is None:
        return None

    def wrap(runner: ClientRunner) -> Runner:
        from ipfl.stress.attackers import Cheating
        from ipfl.stress.faults import Faulty

        cheating: Runner = runner if adversary is None else Cheating(runner, adversary)
        return cheating if plan is None else Faulty(cheating, plan)

    return wrap
