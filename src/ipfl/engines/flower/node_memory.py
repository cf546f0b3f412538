"""What outlives a single message: attempts at a run, what clients remember, and arrays that nodes keep.

Attempts. A server that resumes a run, or rolls a round back, plays some rounds again. A node may not be
connected at that time, so it cannot be told to forget. Instead, every message carries the list of all
attempts so far, each as the first round that it plays. A node that knows attempt a and sees a longer list
forgets everything from the smallest first round of the attempts after a on. It refuses messages of an older
attempt than the one it knows.

Cached arrays. A node keeps the arrays that it was sent, so that the server can refer to them by digest. Both
sides follow one rule: an array is kept as long as one of the client's last `MAX_CACHED_ASKS` asks named it.
So the server knows what a node has without asking. If the server is wrong (a node lost its disk), the node
replies which arrays are missing and is sent everything.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ipfl.client.memory import ClientMemory
from ipfl.core import ClientId, Record
from ipfl.data.federated import FederatedData
from ipfl.engines.flower.messages import ArraysByDigest, NumpyArray, array_digest
from ipfl.errors import InputError
from ipfl.system.files import DRAFT_SUFFIX, atomic_write, write_text

MAX_CACHED_ASKS = 4
"""Asks whose arrays are kept: preference, train, appraise, evaluate are the phases of the longest round."""
INDEX_FILE = "index.json"


class StaleAttemptError(InputError):
    """The message belongs to an attempt that was given up."""


@dataclass(frozen=True)
class DataDescription:
    """What the server knows of data that it cannot see; a resumed run must begin with the same."""

    clients: tuple[ClientId, ...]
    input_shape: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, data: FederatedData) -> DataDescription:
        """Describes data."""
        return cls(data.clients, data.input_shape, data.classes)


@dataclass
class Attempts:
    """The server's list of attempts, in a file of the run's folder.

    Args:
        path: The file; None keeps the list in memory only.
        data: What the server knows of the data.
        memory_on_nodes: Whether data and memory are on the nodes, where no other engine finds them.
        first_rounds: The first round of each attempt.
        run_id: Name of the run on the nodes.
    """

    path: Path | None
    data: DataDescription
    memory_on_nodes: bool = False
    first_rounds: list[int] = field(default_factory=lambda: [0])
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def open(cls, path: Path | None, data: DataDescription, *, memory_on_nodes: bool = False) -> Attempts:
        """Reads the list of a run that was begun, or starts one."""
        if path is not None and path.exists():
            return cls.read(path)
        attempts = cls(path, data, memory_on_nodes)
        attempts._write()
        return attempts

    @classmethod
    def read(cls, path: Path) -> Attempts:
        """Reads the list of a run that was begun."""
        try:
            content = json.loads(path.read_text())
            return cls(
                path,
                DataDescription(
                    tuple(content["clients"]), tuple(content["input_shape"]), int(content["classes"])
                ),
                memory_on_nodes=bool(content["deployed"]),
                first_rounds=[int(first) for first in content["firsts"]],
                run_id=str(content["run"]),
            )
        except OSError as error:
            raise InputError(f"no run on Flower was begun here: cannot read {path}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error

    def begin_attempt(self, first_round: int) -> None:
        """Rounds from `first_round` on are played again."""
        self.first_rounds.append(first_round)
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = {
                "run": self.run_id,
                "deployed": self.memory_on_nodes,
                "firsts": self.first_rounds,
                **asdict(self.data),
            }
            write_text(self.path, json.dumps(content))


class NodeMemory(ClientMemory):
    """What clients of this node remember; call `join_attempt` first, for each message."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._attempt = 0

    def join_attempt(self, client: ClientId, first_rounds: Sequence[int]) -> None:
        """Joins the newest attempt: forgets what earlier ones left of rounds that are played again."""
        known, newest = self._known_attempt(client), len(first_rounds) - 1
        if newest < known:
            raise StaleAttemptError(f"attempt {newest} was given up; this is attempt {known}")
        if newest > known:
            self.forget_after(min(first_rounds[known + 1 :]) - 1, client)
            path = self._attempt_file(client)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, str(newest))
        self._attempt = newest

    def save(self, client: ClientId, record: Record, round: int) -> None:
        """Keeps what the client remembers, unless the attempt was given up while it worked."""
        if self._known_attempt(client) != self._attempt:
            raise StaleAttemptError(f"attempt {self._attempt} was given up while the client worked")
        super().save(client, record, round)

    def _attempt_file(self, client: ClientId) -> Path:
        return self.folder / str(client) / "attempt"

    def _known_attempt(self, client: ClientId) -> int:
        try:
            return int(self._attempt_file(client).read_text())
        except FileNotFoundError:
            return 0


class CacheIndex:
    """Digests of the arrays that a client's last asks named: what its node has in its `ArrayCache`."""

    def __init__(self, asks: Iterable[Iterable[str]] = ()):
        self.asks: deque[frozenset[str]] = deque(map(frozenset, asks), maxlen=MAX_CACHED_ASKS)

    def add_ask(self, digests: Iterable[str]) -> None:
        """Adds one more ask, with the digests that it named."""
        self.asks.append(frozenset(digests))

    def __contains__(self, key: str) -> bool:
        return any(key in ask for ask in self.asks)


class ArrayCache:
    """Arrays that one client was sent, a file each. A broken or missing file is an array that is missing."""

    def __init__(self, folder: Path):
        self.folder = folder

    def load(self, digests: Iterable[str]) -> dict[str, NumpyArray]:
        """Those of the arrays that are there and intact."""
        found = {}
        for key in digests:
            try:
                array = load_file(self.folder / key)["array"]
            except (OSError, SafetensorError, KeyError):
                continue
            if array_digest(array) == key:
                found[key] = array
        return found

    def add_ask(self, arrays: ArraysByDigest) -> None:
        """Stores the arrays that an ask named, and deletes those that no recent ask named."""
        index = self._read_index()
        index.add_ask(arrays)
        self.folder.mkdir(parents=True, exist_ok=True)
        for key, array in arrays.items():
            if not (self.folder / key).exists():
                with atomic_write(self.folder / key) as draft:
                    draft.write_bytes(save({"array": array}))
        write_text(self.folder / INDEX_FILE, json.dumps([sorted(ask) for ask in index.asks]))
        for path in self.folder.iterdir():
            if path.name != INDEX_FILE and path.suffix != DRAFT_SUFFIX and path.name not in index:
                path.unlink(missing_ok=True)

    def _read_index(self) -> CacheIndex:
        try:
            return CacheIndex(json.loads((self.folder / INDEX_FILE).read_text()))
        except (OSError, json.JSONDecodeError):
            return CacheIndex()
