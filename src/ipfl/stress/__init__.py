"""Clients that fail, cheat or follow a strategy: wrappers, `Faulty(Strategic(Cheating(ClientRunner(…))))`.

Imports `ipfl.client` and what is below it; knows no method
and no engine. Imported by `runs` only, which puts the wrappers together (`make_wrapper`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipfl.client.runner import ClientRunner, Runner
    from ipfl.config.run_config import StrategyConfig
    from ipfl.stress.attackers import Adversary
    from ipfl.stress.faults import FaultPlan


def make_wrapper(
    adversary: Adversary | None, plan: FaultPlan | None, strategy: StrategyConfig, seed: int
) -> Callable[[ClientRunner], Runner] | None:
    """Puts attackers, strategies and faults around a runner; None if there are none of them."""
    if adversary is None and plan is None and strategy.cost is None:
        return None

    def wrap(runner: ClientRunner) -> Runner:
        from ipfl.stress.attackers import Cheating
        from ipfl.stress.faults import Faulty
        from ipfl.stress.strategy import Strategic

        wrapped: Runner = runner if adversary is None else Cheating(runner, adversary)
        wrapped = wrapped if strategy.cost is None else Strategic(wrapped, strategy, seed)
        return wrapped if plan is None else Faulty(wrapped, plan)

    return wrap
