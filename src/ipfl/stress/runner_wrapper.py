"""The base of everything that is put around a client runner: it does what the runner inside does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ipfl.client.runner import Delivery, Job, Runner
from ipfl.core import Record

R = TypeVar("R", bound=Runner)


class RunnerWrapper(Generic[R]):
    """A runner around another one; subclasses change `run` or `deliver`."""

    def __init__(self, inner: R):
        self.inner = inner
        self.task, self.memory, self.network = inner.task, inner.memory, inner.network

    def run(self, job: Job) -> Record:
        """The client's reply."""
        return self.inner.run(job)

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """The reply, once."""
        yield Delivery(job, self.run(job))
