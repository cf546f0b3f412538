"""Planned faults: which client drops out, is slow, crashes or sends a broken reply, in which round.

A plan is a pure function of the run's seed and the `[faults]` section, so that the same client has the same
fault in the same phase with any number of workers, and after a resume. `Faulty` wraps the clients' runner;
asks of the evaluator, and of the server to itself, have no faults.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ipfl.client.runner import TRAIN, CrashError, Delivery, Job, Runner
from ipfl.config.run_config import FaultsConfig
from ipfl.core import ClientId, Fact, Record, Vector, stream
from ipfl.errors import InputError
from ipfl.stress.runner_wrapper import RunnerWrapper

ENORMOUS_COMPONENT = 1e30
"""A component of an enormous reply: finite, and much larger than any parameter."""


class FaultPlan:
    """What happens to whom; see `ipfl.config.run_config.FaultsConfig` for the shares."""

    def __init__(self, config: FaultsConfig, seed: int):
        if config.dropout + config.slow + config.crash > 1:
            raise InputError("faults.dropout, faults.slow and faults.crash are more than 1 together")
        self.config, self.seed = config, seed

    @classmethod
    def make(cls, config: FaultsConfig, seed: int) -> FaultPlan | None:
        """The plan of a run; None if clients have no faults."""
        return cls(config, seed) if config.has_client_faults else None

    def fault(self, round: int, client: ClientId) -> str | None:
        """What happens to a client in a round: `before`, `during`, `after`, `slow`, `crash` or nothing."""
        rng, config = stream(self.seed, "faults", round, client), self.config
        drawn = rng.random()
        if drawn < config.dropout:
            return config.dropout_when[int(rng.integers(len(config.dropout_when)))]
        if drawn < config.dropout + config.slow:
            return "slow"
        return "crash" if drawn < config.dropout + config.slow + config.crash else None

    def breakage(self, action: str, round: int, client: ClientId) -> str | None:
        """What is wrong with a client's reply to one phase, if anything."""
        rng, kinds = stream(self.seed, "broken replies", action, round, client), self.config.broken_kinds
        return kinds[int(rng.integers(len(kinds)))] if rng.random() < self.config.broken else None

    def is_absent(self, job: Job) -> bool:
        """Whether the client does not answer a job at all."""
        is_training = job.action == TRAIN
        absent = {
            "before": True,
            "during": job.after_training or is_training,
            "crash": job.after_training,
            "after": job.after_training and not is_training,
        }
        return absent.get(self.fault(job.round, job.client) or "", False)


class Faulty(RunnerWrapper[Runner]):
    """A runner whose clients have the faults of a plan; neither the evaluator nor the server itself has any.

    A client that drops out remembers what it did before; one that is slow remembers what it did, and its
    reply comes before the next one that leaves the same place.
    """

    def __init__(self, inner: Runner, plan: FaultPlan):
        super().__init__(inner)
        self.plan = plan
        self._late: list[Delivery] = []

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """What leaves the client, if anything does.

        Raises:
            CrashError: By the plan, the process is to be killed.
        """
        if job.client < 0 or job.is_evaluation:
            yield from self._deliver_late()
            yield from self.inner.deliver(job)
            return
        fault, plan = self.plan.fault(job.round, job.client), self.plan
        if fault == "crash" and job.action == TRAIN:
            raise CrashError
        if plan.is_absent(job):
            yield Delivery(job, None)
            return
        kind = plan.breakage(job.action, job.round, job.client)
        reply = self.inner.run(job)
        if kind is not None:
            reply = break_reply(reply, kind, stream(plan.seed, "spoiled", job.action, job.round, job.client))
        if fault == "slow":
            self._late.append(Delivery(job, reply, is_last=False))
            yield Delivery(job, None, is_late=True)
            return
        yield from self._deliver_late()
        if kind == "duplicate":
            yield Delivery(job, reply, is_last=False)
        yield Delivery(job, reply)

    def _deliver_late(self) -> Iterator[Delivery]:
        while self._late:
            yield self._late.pop(0)


def break_reply(reply: Record, kind: str, rng: np.random.Generator) -> Record:
    """A reply with broken vectors, or broken facts if it has none. One that is sent twice stays as it is."""
    if kind == "duplicate":
        return reply
    if reply.params:
        return Record({name: _break_vector(v, kind, rng) for name, v in reply.params.items()}, reply.facts)
    return Record({}, {name: _break_fact(fact, kind) for name, fact in reply.facts.items()})


def _break_vector(vector: Vector, kind: str, rng: np.random.Generator) -> Vector:
    """The vector with one component that is wrong, or with one too many."""
    if kind == "shape":
        return np.append(vector, np.float32(0))
    wrong = vector.copy()
    if wrong.size:
        wrong[rng.integers(wrong.size)] = _broken_number(kind)
    return wrong


def _break_fact(fact: Fact, kind: str) -> Fact:
    """The fact with wrong numbers, or a list that lost its last entry."""
    if isinstance(fact, list):
        return fact[:-1] if kind == "shape" else [_break_fact(one, kind) for one in fact]
    number = isinstance(fact, int | float) and not isinstance(fact, bool)
    return _broken_number(kind) if number and kind != "shape" else fact


def _broken_number(kind: str) -> float:
    return {"nan": np.nan, "infinite": np.inf, "enormous": ENORMOUS_COMPONENT}[kind]
