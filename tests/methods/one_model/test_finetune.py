"""Fine-tuning by hand: FedAvg's rounds, and what each client makes of the result."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from tests.federation import ZERO, client, setup, sigma, train_round

from ipfl.core import Record
from ipfl.methods.one_model.finetune import FineTune


def test_one_round_and_then_fine_tuning():
    # (2, class 0) moves client 0 to 0.1·(1, −1); client 1 never moves and has as many points: the mean is
    # 0.05·(1, −1). From there, client 0 fine-tunes by 0.1·2σ(−0.2), and client 1 stays.
    method = FineTune(epochs=1, lr=0.1)
    clients = [client((2, 0)), client((0, 0), id=1)]
    done, memories = train_round(method, method.init(setup(2)), clients)
    np.testing.assert_allclose(done.state.params, [0.05, -0.05], rtol=1e-6)
    offer = method.offer(done.state, 0)
    tuned = 0.05 + 0.1 * 2 * sigma(-0.2)
    np.testing.assert_allclose(method.personalize(offer, memories[0], clients[0]), [tuned, -tuned], rtol=1e-6)
    np.testing.assert_allclose(method.personalize(offer, memories[1], clients[1]), [0.05, -0.05], rtol=1e-6)
    assert memories == {0: Record(), 1: Record()}, "what is fine-tuned is never trained on"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # From 0 a step goes by its lr; from w by 2σ(−4w) times that. 0.3 of the run's 0.1 is 0.03.
        ({"epochs": 1}, 0.03),
        ({"epochs": 2}, 0.03 + 0.03 * 2 * sigma(-0.12)),
        ({"epochs": 1, "lr": 0.3}, 0.3),
        ({"epochs": 2, "lr": 0.3}, 0.3 + 0.3 * 2 * sigma(-1.2)),
        ({}, reduce(lambda w, _: w + 0.03 * 2 * sigma(-4 * w), range(5), 0.0)),
    ],
)
def test_epochs_and_steps_of_its_own(settings, expected):
    offer = Record({"global": ZERO})
    tuned = FineTune(**settings).personalize(offer, Record(), client((2, 0), epochs=2))
    np.testing.assert_allclose(tuned, [expected, -expected], rtol=1e-5)
