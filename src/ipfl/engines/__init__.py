"""Engines: carry asks to clients and replies back, on this machine (`local`) or over Flower (`flower`).

An engine knows no method and no round loop: it is made from an `EngineContext`, and moves records. The
package imports `ipfl.client` and what is below it (`flower` also the ledger, for statements of account);
`runs` and the packages above may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ipfl.core import ClientId, Engine, Method
from ipfl.errors import InputError

if TYPE_CHECKING:  # these import torch, which `ipfl deploy` does not need
    from ipfl.client.runner import ClientRunner, Runner
    from ipfl.config.train_section import AdaptConfig, PrivacyConfig, TrainConfig
    from ipfl.training.task import Task

WrapRunner = Callable[["ClientRunner"], "Runner"]
"""Puts faults or attackers around the place where clients are played (see `ipfl.stress`)."""


@dataclass(frozen=True)
class EngineContext:
    """What an engine is made from."""

    task: Task
    method: Method[Any]
    train: TrainConfig
    seed: int
    memory: Path | None = None
    """Folder for what clients remember; None: nothing outlives the engine."""
    deadline: float | None = None
    """Seconds that a client has for an answer; None: as long as it takes."""
    wrap: WrapRunner | None = None
    """None: clients work as they should."""
    privacy: PrivacyConfig | None = None
    """What replies may reveal; None: everything."""
    adapt: AdaptConfig | None = None
    """The last step at the clients; None: there is none."""


ATTEMPTS_FILE = "flower.json"
"""In the folder of a run on Flower: what the server must know to go on with it."""

NEEDS_LOCAL_ENGINE = "[adversary] and [faults] need the local engine: no other one can make clients fail"

EngineFactory = Callable[[EngineContext], Engine]
"""Makes the engine of a run, which the round loop closes; such as `ipfl.local_engine(workers=0)`."""


TellAccount = Callable[[ClientId, int | None], Mapping[str, Any] | None]
"""What the ledger says of a client's account now, as JSON, given the round of what it was told last; None:
nothing new."""


@runtime_checkable
class TellsAccounts(Protocol):
    """An engine whose clients are elsewhere, and are told what the ledger says of their accounts."""

    tell_account: TellAccount | None
    """Set when the ledger is open; None: there is none, and nobody is told."""


def refuse_wrapped_clients(context: EngineContext) -> None:
    """For engines that play clients elsewhere, where nothing can be put around them.

    Raises:
        InputError: The run is to have attackers or faulty clients.
    """
    if context.wrap is not None:
        raise InputError(NEEDS_LOCAL_ENGINE)
