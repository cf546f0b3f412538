"""What attackers got out of a run, and what they cost the others."""

from __future__ import annotations

import pytest

from ipfl.config.run_config import AdversaryConfig
from ipfl.core import Seat
from ipfl.data.target_kinds import Target
from ipfl.market.market_rows import Transfer
from ipfl.play.attack_report import attack_report, performance_share, round_below_fair_share
from ipfl.play.metrics import Evaluation
from ipfl.stress.attackers import Adversary


def free_riders(share: float, clients: int) -> Adversary:
    config = AdversaryConfig(share=share, kind="free_rider")
    return Adversary(config, tuple(range(clients)), target=Target("classes", 10), seed=0)


HISTORY = (
    {
        "seats": (Seat(0, 0, "random", True), Seat(1, 0, "random", True)),
        "transfers": (Transfer("fee", 0, -3, 40, 0, 0),),
    },
    {
        "seats": (
            Seat(0, 0, "performance", True),
            Seat(1, 1, "performance", True),
            Seat(2, 1, "random", True),
        ),
        "transfers": (Transfer("reward", -3, 1, 30, 0, 1), Transfer("reward", -3, 2, 10, 0, 2)),
    },
)
OPENING = [Transfer("open", -1, client, 100, -1, client) for client in range(3)]


def test_share_of_the_performance_seats():
    # None in round 0; then one of two.
    assert performance_share({0, 2}, HISTORY) == [None, 0.5]


def test_outcome():
    adversary = free_riders(share=0.34, clients=3)
    (bad,) = adversary.attackers
    last = Evaluation(1, {client: 0.1 * client for client in range(3)}, {}, None, None)
    told = attack_report(adversary, OPENING, HISTORY, last)
    end, honest = {0: 60, 1: 130, 2: 110}, [client for client in range(3) if client != bad]
    assert told["kind"] == "free_rider"
    assert told["attackers"] == [bad]
    assert told["share"] == pytest.approx(1 / 3)
    assert told["tokens"]["attackers"] == {"median": end[bad], "net": end[bad] - 100}
    middle = sum(end[client] for client in honest) / 2  # of two, the median is the mean
    assert told["tokens"]["honest"] == {"median": middle, "net": middle - 100}
    assert told["honest_accuracy"]["mean"] == pytest.approx(sum(0.1 * c for c in honest) / 2)


def test_without_a_market_or_an_evaluation():
    told = attack_report(free_riders(share=0.3, clients=10), [], [{"seats": ()}], None)
    assert told["tokens"] is None
    assert told["honest_accuracy"] is None
    assert told["fell_out"] is None


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.2] * 8, None),
        ([None, 0.0, 0.0], 1),
        # Fair is 0.2. Means of five: 0.2, 0.2, 0.13, 0.1, 0.08 (below half from round 4 on), 0.04, 0.
        ([0.2, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0], 4),
        # Out at 1, back in with a round of 0.8 (mean 0.2), out again when the window has passed it.
        ([None, 0.0, 0.0, 0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0], 9),
        ([0.0, 0.0, 0.0, 0.0, 1.0], None),
        ([], None),
    ],
)
def test_round_from_which_on_they_are_out(shares, expected):
    assert round_below_fair_share(shares, fair=0.2) == expected
