"""Malformed replies to every action of every method, over both engines: none of them ends a run.

Each case is one hostile reply in a round that is really played: through the engine's own way of taking
replies, the boundary, and the method's arithmetic. Afterwards the models must be usable, events may blame
only clients that were hostile, and the evaluator asks in the same way. Flower itself is not started: the
messages go into the engine where its transport would hand them over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.contract.plays import Play, has_usable_models, look_at_everything
from tests.federation import play_round
from tests.fuzz.hostile_replies import (
    MESSAGE_MUTATIONS,
    RECORD_MUTATIONS,
    Mutation,
    hostile_message,
    hostile_record,
)
from tests.small_nets import small_model
from tests.small_runs import small_task

import ipfl
from ipfl.config.run_config import EvaluateConfig
from ipfl.config.task_section import TaskConfig
from ipfl.core import Ask, Bytes, ClientId, Record, Replies
from ipfl.engines.flower.flower_engine import FlowerEngine
from ipfl.engines.flower.run_settings import RunSettings
from ipfl.engines.flower.transport import IncomingReply
from ipfl.methods import METHODS
from ipfl.play.evaluation import Evaluator
from ipfl.training.architectures import model_reference
from ipfl.training.task import Task

CASES = 100
"""Hostile replies for each method and engine."""
VARIANTS = {name: (name, {}) for name in METHODS} | {
    "ipfl, relative": ("ipfl", {"importance": "relative", "clusters": 3}),
    "ipfl-plus, printed payment": ("ipfl-plus", {"payment.rule": "paper"}),
    "ipfl-plus, gradients": ("ipfl-plus", {"contribution.rule": "paper"}),
    "ipfl-plus, printed importance": ("ipfl-plus", {"importance.rule": "paper", "sharing.rule": "paper"}),
    "ipfl-plus, no tokens": ("ipfl-plus", {"payment.rule": "none", "guards.rule": "paper"}),
}
"""Methods, and settings of IP-FL with actions or arithmetic of their own."""
TASK = {"clients": 4, "samples": 10, "test_samples": 5}
ROUND = 1
"""The round that is played with hostile replies; those before are honest."""
OFTEN = settings(
    database=None,
    deadline=None,
    derandomize=True,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Answers:
    """Honest replies, each computed once: what clients remember must not depend on hostile rounds."""

    def __init__(self, engine: Any):
        self._engine, self._known = engine, dict[tuple[str, ClientId], Record]()

    def of(self, ask: Ask, client: ClientId, round: int) -> Record:
        """The client's honest reply to an action; the first one that it gave."""
        key = (ask.action, client)
        if key not in self._known:
            self._known[key] = self._engine.ask(Ask(ask.action, {client: ask.to[client]}), round)[client]
        return self._known[key]


class Hostile:
    """An engine whose clients' replies are replaced, some of them, by what is drawn for the client."""

    mutations: st.SearchStrategy[Mutation]

    def __init__(self, honest: Answers):
        self.honest, self.events = honest, list[Any]()
        self.asked, self.attacked = set[str](), set[str]()
        self.draw: Callable[[ClientId], Mutation | None] = lambda client: None

    def answer(self, ask: Ask, client: ClientId, round: int) -> tuple[Record, Mutation | None]:
        """The honest reply, and what is done to it."""
        mutation = self.draw(client)
        self.asked.add(ask.action)
        self.attacked |= set() if mutation is None else {ask.action}
        return self.honest.of(ask, client, round), mutation


class HostileLocal(Hostile):
    """The local engine's replies, some of them replaced by whatever a client's code may return."""

    mutations = RECORD_MUTATIONS
    traffic: Bytes | None = None

    def __init__(self, task: Task, method: Any, honest: Answers):
        super().__init__(honest)

    def ask(self, ask: Ask, round: int) -> Replies:
        """Every client answers, honestly or not."""
        answers = {client: self.answer(ask, client, round) for client in ask.to}
        replies = {
            client: honest if mutation is None else hostile_record(honest, mutation)
            for client, (honest, mutation) in answers.items()
        }
        return {client: reply for client, reply in replies.items() if reply is not None}

    def close(self) -> None:
        """Nothing to close."""


class HostileFlower(Hostile):
    """Flower's engine over a transport that hands over hostile messages."""

    mutations = MESSAGE_MUTATIONS

    def __init__(self, task: Task, method: Any, honest: Answers):
        super().__init__(honest)
        section = TaskConfig(**TASK, model=str(model_reference(task.factory)))
        run_settings = RunSettings(method, ipfl.TrainConfig(), section, 0, 10)
        transport = SimpleNamespace(exchange=self._exchange, traffic=Bytes())
        nodes: Any = SimpleNamespace(transport=transport, node_of=lambda client: client, events=[])
        self.engine = FlowerEngine(nodes, task, run_settings, None)
        self.events = self.engine.events
        self._asked: tuple[Ask, int] = (Ask("", {}), 0)

    @property
    def traffic(self) -> Bytes | None:
        """What the engine counts."""
        return self.engine.traffic

    def ask(self, ask: Ask, round: int) -> Replies:
        """Through the engine; its transport answers."""
        self._asked = (ask, round)
        return self.engine.ask(ask, round)

    def _exchange(
        self, messages: Mapping[ClientId, Any], deadline: float | None
    ) -> Iterator[tuple[ClientId, IncomingReply]]:
        ask, round = self._asked
        for client in messages:
            honest, mutation = self.answer(ask, client, round)
            yield client, IncomingReply(hostile_message(honest, mutation or ("none", None, 0), client))

    def close(self) -> None:
        """Closes the engine."""
        self.engine.close()


@pytest.mark.parametrize("kind", [HostileLocal, HostileFlower])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_malformed_reply_ends_a_run(variant, kind):
    name, chosen = VARIANTS[variant]
    task = small_task(**TASK, model=small_model(name))
    method, cases = ipfl.method(name, **chosen), 0
    with Play(task, method) as play:
        for round in range(ROUND):
            play.round(round)
        engine = kind(task, method, Answers(play.local))
        evaluator = Evaluator(task, method, EvaluateConfig(holdout=5), 0)
        state = play.state

        @OFTEN
        @given(st.lists(kind.mutations | st.none(), min_size=12, max_size=12))
        def play_hostile_round(drawn: list[Any]) -> None:
            nonlocal cases
            if cases >= CASES:
                return
            hostile, waiting = set[ClientId](), list(drawn)

            def draw(client: ClientId) -> Any:
                mutation = waiting.pop() if client >= 0 and waiting else None
                if mutation is not None:
                    hostile.add(client)
                return mutation

            engine.draw, engine.events[:] = draw, []
            played = play_round(method, state, engine, task.data.clients, ROUND)
            play.state = played.state
            assert has_usable_models(play)
            look_at_everything(method, played.state)
            evaluator(engine, played.state, ROUND)
            cases += len(drawn) - drawn.count(None) - len(waiting) + waiting.count(None)
            replied = ("no_answer", "invalid_reply", "malformed_reply", "client_failed")
            blamed = {e.client for e in (*played.events, *engine.events) if e.kind in replied}
            assert blamed <= hostile

        play_hostile_round()
        engine.close()
    assert cases >= CASES
    assert engine.attacked == engine.asked
