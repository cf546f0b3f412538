"""Plays clients under `[privacy]`: noise in all that leaves them, and a book of what that revealed."""

from __future__ import annotations

import secrets

import numpy as np

from ipfl.client.client import Client
from ipfl.client.privacy_accountant import PrivacyBook, Releases, epsilon_of
from ipfl.client.private_client import PrivateClient, noise_path
from ipfl.client.runner import ClientRunner, Disguise, Job
from ipfl.core import Record, stream
from ipfl.core.records import BUDGET_SPENT, PRIVACY_LOSS
from ipfl.data.federated import Samples
from ipfl.errors import InputError


class PrivateRunner(ClientRunner):
    """A runner whose clients send nothing about single points."""

    def _answer(self, job: Job, me: Client, mine: Record, disguise: Disguise | None) -> tuple[Record, Record]:
        """The reply with the client's ε; the server's own holdouts have no noise."""
        if job.client < 0:
            return super()._answer(job, me, mine, disguise)
        private: Client = PrivateClient.of(me, self.privacy, self._noise(job), mine)
        private = private if disguise is None else disguise(private)
        assert isinstance(private, PrivateClient)
        reply, remembered = super()._answer(job, private, mine, None)
        reply = self._book(job, private.protect(reply), private.log.releases)
        return reply, mine if BUDGET_SPENT in reply.facts else private.remember(remembered, mine)

    def _noise(self, job: Job) -> np.random.Generator:
        """Where the noise on a reply comes from; another one for everything that is asked."""
        if not self.is_seeded:
            return np.random.default_rng(secrets.randbits(256))
        return stream(self.seed, "privacy", job.action, job.round, job.client, noise_path(job.record))

    def _book(self, job: Job, reply: Record, releases: Releases) -> Record:
        """The reply with the client's ε, once that is booked; or none, if it would exceed the budget."""
        book = PrivacyBook(self.memory.folder.with_name("privacy"), is_seeded=self.is_seeded)
        phase = f"{job.round}/{job.action}/{noise_path(job.record)}"
        after = book.with_phase(job.client, phase, releases)
        epsilon, budget = epsilon_of(after.values(), self.privacy.delta), self.privacy.epsilon
        if budget is not None and epsilon > budget:
            spent = epsilon_of(book.load(job.client).values(), self.privacy.delta)
            return Record({}, {PRIVACY_LOSS: spent, BUDGET_SPENT: True})
        book.save(job.client, after)
        return Record(reply.params, {**reply.facts, PRIVACY_LOSS: epsilon})

    def _evaluate(self, me: Client, job: Job, mine: Record, test: Samples) -> Record:
        """Noisy counts of an evaluation, of points that belong to somebody; exact ones in a simulation.

        One point changes a count by one at most, because what is scored follows from the offer and from
        noisy values alone. A predictor that was made with an exact look at the points could change in all
        of its predictions with one of them.

        Raises:
            InputError: It is such a predictor.
        """
        if self.is_seeded:
            return super()._evaluate(me, job, mine, test)
        private = PrivateClient.of(me, self.privacy, self._noise(job), mine)
        scores = super()._evaluate(private, job, mine, test)
        if private.log.has_looked:
            raise InputError(
                f"[privacy] keeps evaluations of {self.method.name} on the node: its clients predict with "
                "what is made of their points without noise, so that one of them could change every count"
            )
        facts = dict(scores.facts)
        for name, points in (("hits", "n"), ("goal_hits", "goal_n"), ("global_hits", "n")):
            if name in facts:
                facts[name] = min(max(private.noised(facts[name], 1.0), 0.0), float(facts[points]))
        # More than the noise on three counts covers.
        for name in {"metrics", "model_hits", "last_step"} & facts.keys():
            facts[name] = [None] * len(facts[name])
        return self._book(job, Record({}, facts), private.log.releases)
