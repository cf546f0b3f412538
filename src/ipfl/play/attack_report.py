"""What attackers got out of a run, and what they cost the others: `adversary` in `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipfl.core import ClientId, Seat
from ipfl.engines.local_engine import LocalEngine
from ipfl.market.bank import client_balances
from ipfl.market.market_rows import Transfer
from ipfl.play.loop import Callback, RoundLoop
from ipfl.play.metrics import Evaluation, mean_and_std
from ipfl.stress.attackers import Adversary
from ipfl.stress.strategy import strategy_report

WINDOW_ROUNDS = 5
"""Rounds over which the attackers' share of the seats is averaged: a single round has only a few."""


class AttackReport(Callback):
    """`adversary` in `summary.json`."""

    def __init__(self, adversary: Adversary):
        self.adversary = adversary

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """Adds it to the summary."""
        report = attack_report(self.adversary, loop.opening, loop.history, loop.last_evaluation)
        summary["adversary"] = report


class StrategyReport(Callback):
    """`strategy` in `summary.json`."""

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """Adds what the clients did, which only the local engine knows."""
        assert isinstance(loop.engine, LocalEngine)  # checked before round 0
        memory, clients = loop.engine.runner.memory, loop.task.data.clients
        summary["strategy"] = strategy_report(loop.config.strategy, memory, clients)


def attack_report(
    adversary: Adversary,
    opening: Sequence[Transfer],
    history: Sequence[Mapping[str, Any]],
    last: Evaluation | None,
) -> dict[str, Any]:
    """What the summary says of the attackers.

    Args:
        adversary: Who attacked, and how.
        opening: Transfers before round 0; none without a market.
        history: The lines of all rounds.
        last: The last evaluation.
    """
    attackers = set(adversary.attackers)
    share = len(attackers) / len(adversary.clients)
    accuracy = last.personalized if last else {}
    seats = performance_share(attackers, history)
    return {
        "kind": adversary.config.kind,
        "attackers": list(adversary.attackers),
        "share": share,
        "tokens": _token_figures(adversary, opening, history),
        "performance_share": seats,
        "fell_out": round_below_fair_share(seats, share),
        "honest_accuracy": mean_and_std({c: value for c, value in accuracy.items() if c not in attackers}),
    }


def _token_figures(
    adversary: Adversary, opening: Sequence[Transfer], history: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Median balance and mean net gain of attackers and of honest clients; None without a market."""
    if not opening:
        return None
    start = client_balances(opening)
    end = client_balances(opening, *(line.get("transfers") or () for line in history))
    honest = [client for client in adversary.clients if client not in adversary.attackers]
    return {
        side: {
            "median": float(np.median([end[client] for client in group])),
            "net": float(np.mean([end[client] - start[client] for client in group])),
        }
        for side, group in (("attackers", adversary.attackers), ("honest", honest))
        if group
    }


def performance_share(attackers: set[ClientId], history: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Per round the attackers' share of the seats given by performance (N_p); None where there are none."""
    shares: list[float | None] = []
    for line in history:
        seats: Sequence[Seat] = line.get("seats") or ()
        by_performance = [seat.client in attackers for seat in seats if seat.how == "performance"]
        shares.append(sum(by_performance) / len(by_performance) if by_performance else None)
    return shares


def round_below_fair_share(shares: Sequence[float | None], fair: float) -> int | None:
    """The round from which on attackers hold less than half of their fair share of the N_p; None: never.

    Each round counts with the ones before it, `WINDOW_ROUNDS` in all.
    """
    found = None
    for round in range(len(shares)):
        recent = [
            share for share in shares[max(0, round - WINDOW_ROUNDS + 1) : round + 1] if share is not None
        ]
        if not recent or np.mean(recent) >= fair / 2:
            found = None
        elif found is None:
            found = round
    return found
