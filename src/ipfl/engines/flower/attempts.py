"""Attempts at the rounds of a run, and memory on a node that never outlives an attempt that failed.

A server that resumes, or declares a round void, plays some rounds again. A node may be away when that
happens, so it cannot be told to forget: every message carries the list of all attempts so far, each as the
first round it plays. A node that knows attempt a and sees a longer list forgets everything from the smallest
first round of the attempts after a on; messages of an older attempt than the one it knows are refused.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ipfl.client.memory import ClientMemory
from ipfl.core import ClientId, Record
from ipfl.engines.flower.remote import View
from ipfl.errors import InputError


class StaleError(RuntimeError):
    """The message belongs to an attempt that was given up."""


@dataclass
class Attempts:
    """The server's list, kept on disk beside the run's other files; None keeps it in memory only."""

    path: Path | None
    view: View
    deployed: bool = False
    """Whether data and memory lie on nodes that other machines may be, where no other engine finds them."""
    firsts: list[int] = field(default_factory=lambda: [0])
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def open(cls, path: Path | None, view: View, *, deployed: bool = False) -> Attempts:
        """Reads the list of a run that was begun, or starts one."""
        if path is not None and path.exists():
            return cls.read(path)
        fresh = cls(path, view, deployed)
        fresh._write()
        return fresh

    @classmethod
    def read(cls, path: Path) -> Attempts:
        """Reads the list of a run that was begun."""
        try:
            said = json.loads(path.read_text())
            view = View(tuple(said["clients"]), tuple(said["input_shape"]), int(said["classes"]))
            firsts = [int(first) for first in said["firsts"]]
            return cls(path, view, bool(said["deployed"]), firsts, str(said["run"]))
        except OSError as error:
            raise InputError(f"no run on Flower was begun here: cannot read {path}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error

    def again(self, first: int) -> None:
        """Rounds from `first` on are played again."""
        self.firsts.append(first)
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(".draft")
            said = {"run": self.run, "deployed": self.deployed, "firsts": self.firsts, **asdict(self.view)}
            draft.write_text(json.dumps(said))
            os.replace(draft, self.path)


class NodeMemory(ClientMemory):
    """What clients of this node remember; `enter` first, for each message."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._attempt = 0

    def enter(self, client: ClientId, firsts: Sequence[int]) -> None:
        """Takes part in the newest attempt: forgets what earlier ones left of rounds played again."""
        known, newest = self._known(client), len(firsts) - 1
        if newest < known:
            raise StaleError(f"attempt {newest} was given up; this is attempt {known}")
        if newest > known:
            self.forget_after(min(firsts[known + 1 :]) - 1, client)
            path = self._path(client)
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}.draft")
            draft.write_text(str(newest))
            os.replace(draft, path)
        self._attempt = newest

    def save(self, client: ClientId, record: Record, round: int) -> None:
        """Keeps what the client remembers, unless the attempt was given up while it worked."""
        if self._known(client) != self._attempt:
            raise StaleError(f"attempt {self._attempt} was given up while the client worked")
        super().save(client, record, round)

    def _path(self, client: ClientId) -> Path:
        return self.folder / str(client) / "attempt"

    def _known(self, client: ClientId) -> int:
        try:
            return int(self._path(client).read_text())
        except FileNotFoundError:
            return 0
