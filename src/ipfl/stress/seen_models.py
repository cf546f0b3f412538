"""What a client that does not train knows all the same: the cluster models of its last two queries.

Kept in a second memory of the client, beside what the method lets it remember.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ipfl.core import Record, Vector

SECOND_MEMORY = 2**32
"""The second memory of a client is kept under its id plus this."""
_NOW, _BEFORE = "now_", "before_"


def with_seen(mine: Record, models: Mapping[str, Vector]) -> dict[str, Vector]:
    """What is kept after a query with these models; without models, all stays as it is."""
    if not models:
        return dict(mine.params)
    before = {
        name.replace(_NOW, _BEFORE): model for name, model in mine.params.items() if name.startswith(_NOW)
    }
    return {**before, **{_NOW + name: model for name, model in models.items()}}


def last_step(mine: Record, name: str, model: Vector) -> NDArray[np.float64]:
    """The step that a model made since the query before the last one; 0 if the client has not seen it."""
    before = mine.params.get(_BEFORE + name)
    if before is None or before.shape != model.shape:
        return np.zeros(model.shape)
    return np.asarray(model.astype(np.float64) - before)
