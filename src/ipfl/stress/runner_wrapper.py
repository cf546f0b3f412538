"""The base of everything that is put around a client runner: it does what the runner inside does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import Delivery, Job, Runner
from ipfl.core import Record
from ipfl.training.network import Network
from ipfl.training.task import Task

R = TypeVar("R", bound=Runner)


class RunnerWrapper(Generic[R]):
    """A runner around another one; subclasses change `run` or `deliver`."""

    def __init__(self, inner: R):
        self.inner = inner

    @property
    def memory(self) -> ClientMemory:
        """What the clients remember."""
        return self.inner.memory

    @property
    def network(self) -> Network:
        """The workspace."""
        return self.inner.network

    @property
    def task(self) -> Task:
        """Whose data, which model."""
        return self.inner.task

    def run(self, job: Job) -> Record:
        """The client's reply."""
        return self.inner.run(job)

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """The reply, once."""
        yield Delivery(job, self.run(job))
