"""Malformed replies to every step of a secure sum, over both engines: it is opened or it fails, no more.

As in `test_replies.py`, each case is one hostile reply in a sum that is really taken, and only hostile
clients are blamed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.test_replies import OFTEN, HostileFlower, HostileLocal
from tests.play.test_summed_replies import Clients, sum_of
from tests.small_runs import small_task

import ipfl
from ipfl.client.runner import Job
from ipfl.core import Ask, ClientId, Record
from ipfl.core.records import sum_of_replies
from ipfl.core.replies import is_vector
from ipfl.play.driver import Traffic

CASES = 270
"""Hostile replies for each engine."""
COUNT = 5
STEPS = 4
BLAMING = ("no_answer", "invalid_reply", "malformed_reply", "client_failed")


class Summed:
    """Honest replies to the steps of a sum."""

    def __init__(self) -> None:
        self._clients = Clients()

    def of(self, ask: Ask, client: ClientId, round: int) -> Record:
        """What the client's code answers."""
        return self._clients.runner.run(Job(ask.action, round, client, ask.to[client]))


@pytest.fixture(scope="module")
def task():
    return small_task(clients=COUNT, samples=10, test_samples=5)


@pytest.mark.parametrize("kind", [HostileLocal, HostileFlower])
def test_no_malformed_step_ends_a_run(task, kind):
    engine, cases, outcomes = kind(task, ipfl.method("fedavg"), Summed()), 0, set()
    # One in eight: so that some sums are opened, in spite of what a few clients send.
    step = st.integers(0, 7).flatmap(lambda number: st.none() if number else kind.mutations)

    @settings(OFTEN, max_examples=300)
    @given(st.lists(step, min_size=COUNT * STEPS, max_size=COUNT * STEPS))
    def take_hostile_sum(drawn: list[Any]) -> None:
        nonlocal cases
        if cases >= CASES:
            return
        hostile, waiting = set[ClientId](), list(drawn)

        def draw(client: ClientId) -> Any:
            mutation = waiting.pop() if waiting else None
            if mutation is not None:
                hostile.add(client)
            return mutation

        engine.draw, engine.events[:] = draw, []
        traffic = Traffic()
        replies = sum_of(engine, COUNT, traffic)
        used = drawn[len(waiting) :]
        cases += len(used) - used.count(None)
        total = sum_of_replies(replies)
        outcomes.add(total is not None)
        assert (total is None) == bool(traffic.failed_sums)
        assert total is None or is_vector(total.vectors["m"].astype("float32"), 2)
        assert {e.client for e in (*traffic.events(), *engine.events) if e.kind in BLAMING} <= hostile

    take_hostile_sum()
    engine.close()
    assert cases >= CASES
    assert outcomes == {True, False}
