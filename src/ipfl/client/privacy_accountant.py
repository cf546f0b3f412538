"""What a client has revealed so far: its noisy releases, and the ε that they add up to.

The accountant is Opacus' (Rényi differential privacy, with Poisson sampling where batches are drawn). Two
data sets are neighbours if a point of one is blank in the other ("zero-out", Ponomareva et al., How to
DP-fy ML, 2023): how many points a client has is no secret, and each release changes by at most its
sensitivity.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import ClientId
from ipfl.errors import InputError
from ipfl.system.files import make_folder, write_json

RENYI_ORDERS = (
    1.05,
    1.1,
    1.15,
    1.2,
    1.3,
    1.4,
    1.5,
    1.6,
    1.8,
    2,
    2.25,
    2.5,
    3,
    3.5,
    *range(4, 33),
    48,
    64,
    128,
    256,
)
"""Orders α of the Rényi divergence, of which the best counts."""


Releases = Counter[tuple[float, float]]
"""Noisy values that left a client: (noise, in multiples of the sensitivity; chance of a point to be in)."""


def epsilon_of(releases: Iterable[Releases], delta: float) -> float:
    """ε of all of them together."""
    total = sum(releases, Releases())
    if not total:
        return 0.0
    spent = np.zeros(len(RENYI_ORDERS))
    for (noise, rate), count in total.items():
        spent += count * _divergence(noise, rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or last one
        found, _ = _opacus().get_privacy_spent(orders=RENYI_ORDERS, rdp=spent, delta=delta)
    return max(0.0, float(found))


def _opacus() -> Any:
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise InputError("[privacy] needs the package opacus: pip install 'ipfl[privacy]'") from error
    return rdp


@lru_cache(maxsize=256)
def _divergence(noise: float, rate: float) -> NDArray[np.float64]:
    """Rényi divergence of one release, by order."""
    return np.asarray(_opacus().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RENYI_ORDERS))


class PrivacyBook:
    """A file per client with all that it has released. No roll-back of a round takes anything out of it.

    In a simulation the noise follows from the seed, so that a phase that is played again sends the same bytes
    and reveals nothing new; it is booked once. With secret noise it is booked as often as it is answered.
    """

    def __init__(self, folder: Path, *, is_seeded: bool):
        self.folder, self.is_seeded = folder, is_seeded

    def load(self, client: ClientId) -> dict[str, Releases]:
        """The releases of a client by phase."""
        path = self._file(client)
        if not path.exists():
            return {}
        found: Mapping[str, Any] = json.loads(path.read_text())
        return {
            phase: Releases({(float(noise), float(rate)): int(count) for noise, rate, count in counted})
            for phase, counted in found.items()
        }

    def with_phase(self, client: ClientId, phase: str, releases: Releases) -> dict[str, Releases]:
        """What the book of a client would say after a phase."""
        book = self.load(client)
        before = Releases() if self.is_seeded else book.get(phase, Releases())
        return {**book, phase: before + releases}

    def save(self, client: ClientId, book: Mapping[str, Releases]) -> None:
        """Replaces the book of a client; must be done before anything leaves it."""
        make_folder(self.folder)
        write_json(
            self._file(client),
            {phase: [[*kind, count] for kind, count in one.items()] for phase, one in book.items()},
        )

    def _file(self, client: ClientId) -> Path:
        return self.folder / f"{client}.json"
