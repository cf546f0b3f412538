"""Clients with points of their own and a model of two parameters, for what they do before they predict.

The logits of a point x are (w_0·x, w_1·x): a model (w, −w) with w > 0 says class 0 of every x > 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tests.federation import client, points

from ipfl.client.client import Client
from ipfl.data.federated import Parts

Pairs = Sequence[tuple[float, int]]
RIGHT = np.array([1, -1], np.float32)
"""Says class 0 of every point above 0."""
WRONG = -RIGHT


def person(train: Pairs, goal: Pairs, probe: Pairs | None = None, use_probe: bool = True) -> Client:
    """A client with these parts; `probe` is the same as `goal` if it is not given."""
    me, held_back = client(*train, action="evaluate", use_probe=use_probe), points(*goal)
    own = held_back if probe is None else points(*probe)
    return replace(me, parts=Parts(points(*train), own, held_back, me.parts.test))
