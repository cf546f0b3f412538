"""Methods whose run fails in its second round, each in its own way; and how a test adds methods."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from pydantic.dataclasses import dataclass

from ipfl import methods
from ipfl.core import Ask, Method, Record, Replies, Roster, Round
from ipfl.methods import REFERENCE, method_class


@dataclass(frozen=True)
class TrainsOne(method_class(REFERENCE)):  # type: ignore[misc]
    """Trains one client in its first round; in the second, `fail` decides."""

    name = "trains-one"

    def round(self, state: Any, roster: Roster, round: int) -> Generator[Ask, Replies, Round[Any]]:
        if round:
            self.fail()
        yield Ask("train", {client: Record({"global": state.params}) for client in roster.clients[:1]})
        return Round(state)

    def fail(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Killed(TrainsOne):
    """Its process dies by SIGKILL."""

    name = "killed"

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Broken(TrainsOne):
    """An exception."""

    name = "broken"

    def fail(self) -> None:
        raise RuntimeError("out of luck")


@dataclass(frozen=True)
class Stopped(TrainsOne):
    """The user presses Ctrl-C."""

    name = "stopped"

    def fail(self) -> None:
        raise KeyboardInterrupt


def add_methods(monkeypatch: pytest.MonkeyPatch, *classes: type[Method[Any]]) -> None:
    """For one test, methods are also found under the names of these classes."""
    by_name = {kind.name: kind for kind in classes}
    monkeypatch.setattr(methods, "method_class", lambda name: by_name.get(name) or method_class(name))
