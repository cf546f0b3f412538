"""Attackers: clients that free-ride, poison, lie or collude.

`Cheating` wraps the runner: an attacker may work on other data than its own, and may send another reply than
the honest one, knowing what it was asked and what it would have said. The evaluator always gets the true
answer. Which clients attack is a seeded choice.

- `free_rider`: returns the model as it came.
- `noisy_free_rider`: returns it with noise, `strength` times as long as its honest update.
- `replay`: returns it with the step that the model made since the client last saw it, once more.
- `label_flip`: trains and scores with every label y as y + 1; several labels are turned, numbers mirrored.
- `sign_flip`: sends its update the other way round, `strength` times.
- `scaled`: sends its update `strength` times.
- `liar`: trains honestly, but claims `strength` times its samples, and that its favourite model is always
  right and the others never.
- `colluder`: all bid for one cluster and send a common step that nobody trained; their gradients, `strength`
  times as long as honest ones, call for that very step, and they claim that the models are always right.
- `sybil`: many names of one client: its data, and its update with noise, `strength` times as long as it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client
from ipfl.client.runner import TRAIN, ClientRunner, Job
from ipfl.config.run_config import AdversaryConfig, AttackKind
from ipfl.core import EMPTY, ClientId, Fact, Record, Vector, stream
from ipfl.core.records import BUDGET_SPENT, split_privacy_facts
from ipfl.data.federated import FederatedData, Parts, Samples
from ipfl.data.target_kinds import Target
from ipfl.stress.runner_wrapper import RunnerWrapper
from ipfl.stress.seen_models import SECOND_MEMORY, last_step, with_seen

PREFERENCE, APPRAISE = "preference", "appraise"
"""Actions, beside training, that attackers know how to cheat in; all others are answered honestly."""

DEFAULT_STRENGTH: Mapping[AttackKind, float] = {
    "noisy_free_rider": 1.0,
    "sign_flip": 1.0,
    "scaled": 10.0,
    "liar": 10.0,
    "colluder": 10.0,
    "sybil": 0.01,
}
"""What `strength` is by default; kinds that are not here have none."""


@dataclass(frozen=True)
class Adversary:
    """Who attacks, and how."""

    config: AdversaryConfig
    clients: tuple[ClientId, ...]
    target: Target
    seed: int

    @classmethod
    def make(cls, config: AdversaryConfig, data: FederatedData, seed: int) -> Adversary | None:
        """The adversary of a run; None if nobody attacks."""
        adversary = cls(config, data.clients, data.target, seed)
        return adversary if adversary.attackers else None

    @cached_property
    def attackers(self) -> tuple[ClientId, ...]:
        """A seeded choice of the clients, in ascending id."""
        count = round(self.config.share * len(self.clients))
        chosen = stream(self.seed, "attackers").choice(self.clients, count, replace=False)
        return tuple(sorted(int(client) for client in chosen))

    @property
    def strength(self) -> float:
        """How hard they attack."""
        given = self.config.strength
        return DEFAULT_STRENGTH.get(self.config.kind, 1.0) if given is None else given

    def disguise(self, me: Client, data: FederatedData) -> Client:
        """The client as it works: with false labels, or as another one."""
        if self.config.kind == "label_flip":
            return replace(me, parts=self._flipped(me.parts))
        if self.config.kind == "sybil":  # the same random stream too: one training, many names
            one = self.attackers[0]
            return replace(me, id=one, parts=replace(data.parts(one, me.round), test=me.parts.test))
        return me

    def _flipped(self, parts: Parts) -> Parts:
        def flip(samples: Samples) -> Samples:
            return Samples(samples.x, self.target.wrong_targets(samples.y))

        return Parts(flip(parts.train), flip(parts.probe), flip(parts.goal), parts.test)

    def reply(
        self, client: ClientId, action: str, round: int, ask: Record, honest: Record, seen: Record = EMPTY
    ) -> Record:
        """What the client answers instead of the honest reply.

        Args:
            client: Who.
            action: What it was asked to do.
            round: When.
            ask: What it was sent.
            honest: What it would have answered.
            seen: The models of its last queries, if it keeps them.
        """
        if action == TRAIN and self.config.kind == "replay":
            return self._replay(ask, honest, seen)
        if action == TRAIN:
            return self._update(client, round, ask, honest)
        if action == PREFERENCE and self.config.kind in ("liar", "colluder"):
            return self._preference(ask, honest)
        if action == APPRAISE and self.config.kind in ("liar", "colluder"):
            return self._appraisal(round, honest)
        return honest

    def _update(self, client: ClientId, round: int, ask: Record, honest: Record) -> Record:
        """Trained models as this kind would have them; what was not asked about stays."""
        params = dict(honest.params)
        for name, model in honest.params.items():
            before = ask.params.get(name)
            if before is not None and before.shape == model.shape:
                step = self._step(client, round, name, model.astype(np.float64) - before)
                params[name] = (before + step).astype(np.float32)
        facts = dict(honest.facts)
        if self.config.kind == "liar":
            facts["n"] = int(self.strength * facts["n"])
        return Record(params, facts)

    def _replay(self, ask: Record, honest: Record, seen: Record) -> Record:
        """Every model with its last step once more."""
        steps = {name: last_step(seen, name, model) for name, model in ask.params.items()}
        models = {name: (ask.params[name] + step).astype(np.float32) for name, step in steps.items()}
        return Record({**honest.params, **models}, honest.facts)

    def _step(
        self, client: ClientId, round: int, name: str, honest: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        length = self.strength * float(np.linalg.norm(honest))
        match self.config.kind:
            case "free_rider":
                return np.zeros_like(honest)
            case "noisy_free_rider":
                return length * self._direction(honest.size, "noise", client, round, name)
            case "sign_flip":
                return -self.strength * honest
            case "scaled":
                return self.strength * honest
            case "colluder":
                return float(np.linalg.norm(honest)) * self._common(honest.size, round, name)
            case "sybil":
                return honest + length * self._direction(honest.size, "noise", client, round, name)
            case _:
                return honest

    def _common(self, size: int, round: int, name: str) -> NDArray[np.float64]:
        """The step that colluders agreed upon for this round and model."""
        return self._direction(size, "collusion", round, name)

    def _direction(self, size: int, *path: str | int) -> NDArray[np.float64]:
        """A random vector of length 1."""
        vector = stream(self.seed, *path).standard_normal(size)
        return np.asarray(vector / np.linalg.norm(vector))

    def _preference(self, ask: Record, honest: Record) -> Record:
        """All hits for one cluster, none for the others: its favourite, or the one that colluders chose."""
        clusters: list[int] = ask.facts["clusters"]
        favourite = int(honest.facts["bids"][0]) if self.config.kind == "liar" else clusters[0]
        points = int(self.strength * honest.facts["n"]) if self.config.kind == "liar" else honest.facts["n"]
        hits = [float(points) if k == favourite else 0.0 for k in clusters] if honest.facts["hits"] else []
        return Record({}, {**honest.facts, "bids": [favourite], "hits": hits, "n": points})

    def _appraisal(self, round: int, honest: Record) -> Record:
        """Every model it sits in is always right; a colluder's gradient asks for the group's step."""
        claim = self.strength if self.config.kind == "liar" else 1.0
        facts: dict[str, Fact] = {name: [claim * n, claim * n] for name, (_, n) in honest.facts.items()}
        if self.config.kind == "liar":
            return Record(honest.params, facts)
        return Record(
            {name: self._common_gradient(round, name, g) for name, g in honest.params.items()}, facts
        )

    def _common_gradient(self, round: int, name: str, gradient: Vector) -> Vector:
        length = self.strength * float(np.linalg.norm(gradient))
        return (-length * self._common(gradient.size, round, name)).astype(np.float32)


class Cheating(RunnerWrapper[ClientRunner]):
    """A runner whose attackers cheat; everyone else is played as by the runner inside."""

    def __init__(self, inner: ClientRunner, adversary: Adversary):
        super().__init__(inner)
        self.adversary = adversary

    def run(self, job: Job) -> Record:
        """The client's reply, honest or not."""
        if job.is_evaluation or job.client not in self.adversary.attackers:
            return self.inner.run(job)
        data = self.inner.task.data
        honest, about_privacy = split_privacy_facts(
            self.inner.run(job, lambda me: self.adversary.disguise(me, data))
        )
        if BUDGET_SPENT in about_privacy:
            return Record({}, about_privacy)
        seen = EMPTY
        if self.adversary.config.kind == "replay":
            seen = self.memory.load(job.client + SECOND_MEMORY)
            if job.action == PREFERENCE:
                kept = Record(with_seen(seen, job.record.params))
                self.memory.save(job.client + SECOND_MEMORY, kept, job.round)
        reply = self.adversary.reply(job.client, job.action, job.round, job.record, honest, seen)
        return replace(reply, facts={**reply.facts, **about_privacy})
