"""A client's labels as a prior over classes: a term for the biases of its model's outputs.

A client that has class c three times as often as others should say c more readily. To the logits of a model
that was trained where all C classes are as frequent belongs log(C·p_c), with the client's own shares p
(Bayes' rule). It takes no training, and forgets nothing.

The shares are not known, only n labels are, and of 160 labels of 52 classes most differences are chance. So
the shares are p_c = (n_c + α/C) / (n + α), the posterior mean under a Dirichlet distribution of concentration
α, and α is what the client's labels show (method of moments): with Q = Σ_c (n_c/n − 1/C)² in units of what
equal shares would give, (1 − 1/C)/n,

    E Q = (n + α) / (1 + α),    so that    α = (n − Q) / (Q − 1).

Two standard deviations that Q has by chance, √(2/(C − 1)) each, are taken off it first: shares that may as
well be equal count as equal.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CHANCE = 2.0
"""Standard deviations by which labels must be less even than by chance before they count."""
MIN_CONCENTRATION = 0.05
"""α for each class, at least: a class that a client has never seen is rare, not impossible."""


def prior_logits(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """(C,) log(C·p_c) of a client with these labels; zeros if they may as well be of equal shares."""
    n = len(labels)
    if n == 0 or classes < 2:
        return np.zeros(classes)
    counts = np.bincount(labels, minlength=classes)
    uneven = float(np.square(counts / n - 1 / classes).sum()) / ((1 - 1 / classes) / n)
    uneven -= CHANCE * math.sqrt(2 / (classes - 1))
    if uneven <= 1:
        return np.zeros(classes)
    concentration = max((n - uneven) / (uneven - 1), MIN_CONCENTRATION * classes)
    shares = (counts + concentration / classes) / (n + concentration)
    return np.asarray(np.log(classes * shares), np.float64)
