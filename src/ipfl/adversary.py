"""Bad actors: clients that free-ride, poison, lie or collude, and what they got out of it.

They act on the client's side, between the method and the engine: an attacker may work on other data than its
own, and may send another reply than the honest one, knowing what it was asked and what it would have said.
The evaluator is always told the truth. Which clients attack is a seeded choice.

- `free_rider`: returns the model as it came.
- `noisy_free_rider`: returns it with noise, `strength` times as long as its honest update.
- `label_flip`: trains and scores with every label y as y + 1.
- `sign_flip`: sends its update the other way round, `strength` times.
- `scaled`: sends its update `strength` times.
- `liar`: trains honestly, but claims `strength` times its samples, and that its favourite model is always
  right and the others never.
- `colluder`: all bid for one cluster and send a common step that nobody trained; their gradients, `strength`
  times as long as honest ones, call for that very step, and they claim that the models are always right.
- `sybil`: many names of one client: its data, and its update with noise, `strength` times as long as it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config import AdversaryConfig
from ipfl.core import ClientId, Fact, Record, Vector, stream
from ipfl.data.federated import FederatedData, Parts, Samples
from ipfl.market.appraisal import gradient_name
from ipfl.metrics import Evaluation, spread

if TYPE_CHECKING:
    from ipfl.client import Client

TRAIN, PREFERENCE, APPRAISE = "train", "preference", "appraise"
"""Actions of methods that attackers know how to cheat in; all others are answered honestly."""

STRENGTH = {
    "noisy_free_rider": 1.0,
    "sign_flip": 1.0,
    "scaled": 10.0,
    "liar": 10.0,
    "colluder": 10.0,
    "sybil": 0.01,
}
"""What `strength` is by default; kinds that are not here have none."""

WINDOW = 5
"""Rounds over which the attackers' share of the seats is averaged: a single round has only a few."""


@dataclass(frozen=True)
class Adversary:
    """Who attacks, and how."""

    config: AdversaryConfig
    clients: tuple[ClientId, ...]
    classes: int
    seed: int

    @classmethod
    def of(cls, config: AdversaryConfig | None, data: FederatedData, seed: int) -> Adversary | None:
        """The adversary of a run; None if nobody attacks."""
        adversary = None if config is None else cls(config, data.clients, data.classes, seed)
        return adversary if adversary and adversary.attackers else None

    @cached_property
    def attackers(self) -> tuple[ClientId, ...]:
        """A seeded choice of the clients, in ascending id."""
        count = round(self.config.share * len(self.clients))
        chosen = stream(self.seed, "attackers").choice(self.clients, count, replace=False)
        return tuple(sorted(int(client) for client in chosen))

    @property
    def strength(self) -> float:
        """How hard they attack."""
        return STRENGTH.get(self.config.kind, 1.0) if self.config.strength is None else self.config.strength

    def guise(self, me: Client, data: FederatedData) -> Client:
        """The client as it works: with false labels, or as another one."""
        if me.id not in self.attackers:
            return me
        if self.config.kind == "label_flip":
            return replace(me, parts=self._flipped(me.parts))
        if self.config.kind == "sybil":  # the same random stream too: one training, many names
            one = self.attackers[0]
            return replace(me, id=one, parts=replace(data.parts(one, me.round), test=me.parts.test))
        return me

    def _flipped(self, parts: Parts) -> Parts:
        def flip(samples: Samples) -> Samples:
            return Samples(samples.x, (samples.y + 1) % self.classes)

        return Parts(flip(parts.train), flip(parts.probe), flip(parts.goal), parts.test)

    def reply(self, client: ClientId, action: str, round: int, ask: Record, honest: Record) -> Record:
        """What the client answers instead of the honest reply."""
        if client not in self.attackers:
            return honest
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
            gradient = honest.params.get(gradient_name(name))
            if gradient is not None and self.config.kind == "colluder":
                params[gradient_name(name)] = self._praise(round, name, gradient)
        facts = dict(honest.facts)
        if self.config.kind == "liar":
            facts["n"] = int(self.strength * facts["n"])
        return Record(params, facts)

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
        hits = [float(points) if k == favourite else 0.0 for k in clusters]
        return Record({}, {**honest.facts, "bids": [favourite], "hits": hits, "n": points})

    def _appraisal(self, round: int, honest: Record) -> Record:
        """Every model it sits in is always right; a colluder's gradient asks for the group's step."""
        claim = self.strength if self.config.kind == "liar" else 1.0
        facts: dict[str, Fact] = {name: [claim * n, claim * n] for name, (_, n) in honest.facts.items()}
        if self.config.kind == "liar":
            return Record(honest.params, facts)
        return Record({name: self._praise(round, name, g) for name, g in honest.params.items()}, facts)

    def _praise(self, round: int, name: str, gradient: Vector) -> Vector:
        length = self.strength * float(np.linalg.norm(gradient))
        return (-length * self._common(gradient.size, round, name)).astype(np.float32)

    def outcome(
        self,
        opening: Sequence[Sequence[Any]],
        history: Sequence[Mapping[str, Any]],
        last: Evaluation | None,
    ) -> dict[str, Any]:
        """What `summary.json` says of them."""
        attackers = set(self.attackers)
        accuracy = last.personalized if last else {}
        seats = performance_share(attackers, history)
        honest = {c: value for c, value in accuracy.items() if c not in attackers}
        return {
            "kind": self.config.kind,
            "attackers": list(self.attackers),
            "share": len(attackers) / len(self.clients),
            "tokens": self._tokens(opening, history),
            "performance_share": seats,
            "fell_out": fell_out(seats, len(attackers) / len(self.clients)),
            "honest_accuracy": spread(honest),
        }

    def _tokens(
        self, opening: Sequence[Sequence[Any]], history: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any] | None:
        """Median balance and mean net gain of attackers and of honest clients; None without a market."""
        if not opening:
            return None
        start = balances(opening)
        end = balances(opening, *(line.get("transfers") or () for line in history))
        honest = [client for client in self.clients if client not in self.attackers]
        return {
            side: {
                "median": float(np.median([end[client] for client in group])),
                "net": float(np.mean([end[client] - start[client] for client in group])),
            }
            for side, group in (("attackers", self.attackers), ("honest", honest))
            if group
        }


def balances(*transfers: Sequence[Sequence[Any]]) -> dict[ClientId, int]:
    """Tokens of every client after all transfers, rows [kind, source, target, amount, …]."""
    held: dict[ClientId, int] = {}
    for rows in transfers:
        for _, source, target, amount, *_ in rows:
            for account, sign in ((source, -1), (target, 1)):
                if account >= 0:
                    held[account] = held.get(account, 0) + sign * amount
    return held


def performance_share(attackers: set[ClientId], history: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Per round the attackers' share of the seats given by performance (N_p); None where there are none."""
    shares: list[float | None] = []
    for line in history:
        seated = [client for client, _, how, _ in line.get("seats") or () if how == "performance"]
        shares.append(sum(client in attackers for client in seated) / len(seated) if seated else None)
    return shares


def fell_out(shares: Sequence[float | None], fair: float) -> int | None:
    """The round from which on attackers hold less than half of their fair share of the N_p; None: never.

    Each round counts with the ones before it, `WINDOW` in all.
    """
    found = None
    for round in range(len(shares)):
        recent = [share for share in shares[max(0, round - WINDOW + 1) : round + 1] if share is not None]
        if not recent or np.mean(recent) >= fair / 2:
            found = None
        elif found is None:
            found = round
    return found
