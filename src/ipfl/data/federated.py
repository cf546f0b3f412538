"""What a federation's data looks like to everyone else: parts, samples, and who holds them.

Each client has the four parts of READING: `train`; `probe`, held back from its training data to score
models; `goal`, a sample of what it wants to be good at; `test`, which only the evaluator sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Samples:
    """Some labelled points: images as uint8 (n, height, width, channels), else float32 (n, features)."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Parts:
    """One client's data at one time."""

    train: Samples
    probe: Samples
    goal: Samples
    test: Samples


class FederatedData(Protocol):
    """Data of a whole federation; a client's arrays are made when it works and dropped afterwards."""

    name: str
    partition: str
    input_shape: tuple[int, ...]
    classes: int
    distributions: int
    """Number of hidden distributions; 1 if there are none to tell apart."""
    clients: tuple[int, ...]
    """Ids of the clients that may take part."""
    unseen: tuple[int, ...]
    """Ids of the clients held back: never trained with, evaluated at the end."""

    def parts(self, client: int, round: int = 0) -> Parts:
        """The client's data in that round (drift changes it)."""
        ...

    def sizes(self, client: int) -> Mapping[str, int]:
        """Number of samples per part, without making the arrays."""
        ...

    def majority(self, client: int, round: int = 0) -> int | None:
        """The distribution that most of its training data comes from; None where there is none.

        For metrics only: neither the server nor a client is told.
        """
        ...

    def holdout(self, distribution: int) -> Samples:
        """Test pool of one distribution, for the accuracy of cluster models."""
        ...

    def server_holdout(self, distribution: int) -> Samples | None:
        """The server's own few samples of one distribution, if it was given any."""
        ...
