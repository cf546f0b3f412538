"""The market of IP-FL: who wants which cluster, who trains in it, who pays and who earns.

Pure NumPy: no models, no I/O, no clock. State goes in and comes out; no array that came in is changed.
Where each part of the paper lives:

| paper | here |
|---|---|
| Eq. importance_weights, Eq. personalized_model, Algorithm 2 (client) | `preferences` |
| Profiler, appendix "Shapley value approximation" | `profiler` |
| Eq. consumer_cost, update_available_tokens, reimbursement_utility, reimbursement | `tokens` |
| Eq. reward_distribution | `tokens` |
| what the equations move, as double-entry transfers | `ledger` |
| Scheduler, SelectClients of Algorithm 1 (server) | `scheduler` |
| appendix "Initial Clustering", Eq. imprtant_features | `warmstart` |
| Algorithm 1, lines 4, 7, 8: training | `updates` |
| Fairness; whether the economy is well | `health` |
| beyond the paper: a market that reckons with bad actors | `guard` |

A client is its row number 0 … N−1 and a cluster its column number 0 … K−1 in every array. Whoever has
other client ids keeps them in ascending order, so that "ties by client id" means the same on both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
