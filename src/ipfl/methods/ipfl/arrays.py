"""Names for the arrays of the market."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.ledger.accounts import Ints

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]

__all__ = ["Bools", "Floats", "Ints"]
