"""Faults, planned: which client drops out, is slow, crashes or answers nonsense, in which round.

A plan is a pure function of the run's seed and the `[faults]` section, so that a fault strikes the same
client in the same phase on every engine, with any number of workers, and after a resume. It acts on the
client's side (`ipfl.host.Host`); the evaluator's own questions, and the server's to itself, are spared.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from ipfl.config import FaultsConfig
from ipfl.core import ClientId, Fact, Record, Vector, stream
from ipfl.errors import InputError

TRAIN = "train"
"""The action that `before`, `during` and `after` are told by."""
ABSURD = 1e30
"""A component of an enormous reply: finite, and far from any parameter."""


class AbsentError(Exception):
    """A client does not answer a phase; an engine leaves it out of the replies."""


class DroppedOutError(AbsentError):
    """It is not there, or went away before it was done; it remembers what it did before."""


class CrashedError(AbsentError):
    """The process that it runs in is to be killed, if that is not the server's own."""


class TooLateError(AbsentError):
    """It answers, but after the deadline; it remembers what it did."""

    def __init__(self, reply: Record):
        super().__init__()
        self.reply = reply
        """What arrives when nobody waits for it any more."""


class FaultPlan:
    """What happens to whom; see `ipfl.config.FaultsConfig` for the shares."""

    def __init__(self, config: FaultsConfig, seed: int):
        if config.dropout + config.slow + config.crash > 1:
            raise InputError("faults.dropout, faults.slow and faults.crash come to more than all clients")
        self.config, self.seed = config, seed

    @classmethod
    def of(cls, config: FaultsConfig | None, seed: int) -> FaultPlan | None:
        """The plan of a run; None if no client has anything to fear."""
        if config is None or not (config.dropout or config.slow or config.crash or config.broken):
            return None
        return cls(config, seed)

    def fate(self, round: int, client: ClientId) -> str | None:
        """What a client meets in a round: `before`, `during`, `after`, `slow`, `crash` or nothing."""
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

    def answer(
        self, work: Callable[[], Record], action: str, round: int, client: ClientId, trained: bool
    ) -> Record:
        """The client's reply as it leaves it.

        Args:
            work: Makes the reply, and keeps what the client remembers.
            action: The phase.
            round: The round.
            client: Who.
            trained: Whether training was asked for earlier in this round, of anyone.

        Raises:
            AbsentError: It does not answer, or not in time.
        """
        fate = self.fate(round, client)
        if fate == "crash" and action == TRAIN:
            raise CrashedError
        gone = {
            "before": True,
            "during": trained or action == TRAIN,
            "crash": trained,
            "after": trained and action != TRAIN,
        }
        if fate is not None and gone.get(fate, False):
            raise DroppedOutError
        reply = work()
        kind = self.breakage(action, round, client)
        if kind is not None:
            reply = spoiled(reply, kind, stream(self.seed, "spoiled", action, round, client))
        if fate == "slow":
            raise TooLateError(reply)
        return reply


def spoiled(reply: Record, kind: str, rng: np.random.Generator) -> Record:
    """A reply gone wrong: its vectors, or its facts if it has none. One that comes twice is as it was."""
    if kind == "duplicate":
        return reply
    if reply.params:
        return Record({name: _vector(v, kind, rng) for name, v in reply.params.items()}, reply.facts)
    return Record({}, {name: _fact(fact, kind) for name, fact in reply.facts.items()})


def _vector(vector: Vector, kind: str, rng: np.random.Generator) -> Vector:
    """The vector with one component that is wrong, or one too many."""
    if kind == "shape":
        return np.append(vector, np.float32(0))
    wrong = vector.copy()
    if wrong.size:
        wrong[rng.integers(wrong.size)] = _number(kind)
    return wrong


def _fact(fact: Fact, kind: str) -> Fact:
    """The fact with wrong numbers, or a list that lost its last entry."""
    if isinstance(fact, list):
        return fact[:-1] if kind == "shape" else [_fact(one, kind) for one in fact]
    number = isinstance(fact, int | float) and not isinstance(fact, bool)
    return _number(kind) if number and kind != "shape" else fact


def _number(kind: str) -> float:
    return {"nan": np.nan, "infinite": np.inf, "enormous": ABSURD}[kind]


class Outage:
    """Something that is gone in some rounds, each time for some seconds from when it is first needed."""

    def __init__(self, rounds: Sequence[int], seconds: float):
        self.rounds, self.seconds = frozenset(rounds), seconds
        self._until: dict[int, float] = {}

    def lasts(self, round: int) -> bool:
        """Whether it is gone now, in this round."""
        if round not in self.rounds:
            return False
        now = time.monotonic()
        return now < self._until.setdefault(round, now + self.seconds)


def no_space(round: int) -> OSError:
    """What a full disk says."""
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, by the fault plan of round {round}")
