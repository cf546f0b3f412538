"""A place where clients run: this process, a worker process, a Flower node.

It finds a client's data and memory, lets the method's `on_<action>` work, and keeps what it remembers.
Two actions belong to the evaluator instead of a method: `EVALUATE` (a client's personalized model on its
test data) and `ASSESS` (a server model on the test pool of one distribution).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipfl.adversary import Adversary
from ipfl.client import Client
from ipfl.config import TrainConfig
from ipfl.core import ClientId, Method, Record
from ipfl.data.federated import Parts, Samples
from ipfl.faults import FaultPlan
from ipfl.memory import ClientMemory
from ipfl.models import Network
from ipfl.task import Task
from ipfl.train import evaluate

EVALUATE = "evaluate"
ASSESS = "assess"


class Host:
    """Runs the client side of a method, one client at a time, in one workspace."""

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        settings: TrainConfig,
        seed: int,
        memory: ClientMemory,
        adversary: Adversary | None = None,
        faults: FaultPlan | None = None,
    ):
        self.task = task
        self.method = method
        self.settings = settings
        self.seed = seed
        self.memory = memory
        self.adversary = adversary
        self.faults = faults
        self.network: Network = task.network(seed)
        self.initial = self.network.read()

    def run(self, action: str, round: int, client: ClientId, record: Record, trained: bool = False) -> Record:
        """The client's reply to one phase; `trained`: training was asked for earlier in this round.

        Raises:
            AbsentError: By its fault plan, the client does not answer.
        """
        if self.faults is None or not self._exposed(action, client):
            return self._run(action, round, client, record)
        return self.faults.answer(
            lambda: self._run(action, round, client, record), action, round, client, trained
        )

    def twice(self, action: str, round: int, client: ClientId) -> bool:
        """Whether, by its fault plan, the client's reply is sent twice."""
        if self.faults is None or not self._exposed(action, client):
            return False
        return self.faults.breakage(action, round, client) == "duplicate"

    @staticmethod
    def _exposed(action: str, client: ClientId) -> bool:
        """Whether faults can strike: neither the evaluator nor the server itself has any."""
        return client >= 0 and action not in (EVALUATE, ASSESS)

    def _run(self, action: str, round: int, client: ClientId, record: Record) -> Record:
        if action == ASSESS:
            return self._assess(client, record)
        parts = self._parts(client, round)
        mine = self.memory.load(client)
        # The evaluator alone sees the test data; a method gets the other three parts.
        hidden = replace(parts, test=Samples(parts.test.x[:0], parts.test.y[:0]))
        me = Client(
            id=client,
            round=round,
            action=action,
            seed=self.seed,
            classes=self.task.data.classes,
            parts=hidden,
            network=self.network,
            settings=self.settings,
            initial=self.initial,
        )
        if action == EVALUATE:
            return self._evaluate(me, record, mine, parts.test)
        me = me if self.adversary is None else self.adversary.guise(me, self.task.data)
        reply, remembered = getattr(self.method, f"on_{action}")(record, mine, me)
        if remembered is not mine:
            self.memory.save(client, remembered, round)
        if self.adversary is not None:
            return self.adversary.reply(client, action, round, record, reply)
        return reply  # type: ignore[no-any-return]

    def _parts(self, client: ClientId, round: int) -> Parts:
        """A client's data; for the server's own holdouts (negative ids) the holdout is every part."""
        if client >= 0:
            return self.task.data.parts(client, round)
        holdout = self.task.data.server_holdout(-1 - client)
        if holdout is None:
            raise ValueError(f"the server has no holdout of distribution {-1 - client}")
        return Parts(holdout, holdout, holdout, holdout)

    def _evaluate(self, me: Client, offer: Record, mine: Record, test: Samples) -> Record:
        """Accuracy of what the client would deploy now, and of the model called `global` if there is one."""
        deployed = self.method.personalize(offer, mine, me)
        facts = {"n": len(test), "hits": evaluate(self.network, deployed, test).hits}
        shared = offer.params.get("global")
        if shared is not None:
            same = shared is deployed
            facts["global_hits"] = facts["hits"] if same else evaluate(self.network, shared, test).hits
        return Record({}, facts)

    def _assess(self, distribution: int, models: Record) -> Record:
        """Hits of every server model on the first `limit` test points of one distribution."""
        holdout = self.task.data.holdout(distribution)
        limit = int(models.facts["limit"])
        samples = Samples(holdout.x[:limit], holdout.y[:limit])
        hits = [evaluate(self.network, model, samples).hits for model in models.params.values()]
        return Record({}, {"n": len(samples), "hits": hits})
