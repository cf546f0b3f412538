"""Clients that join in the middle of a run."""

from ipfl.config.run_config import ClientsConfig
from ipfl.play.arrivals import Arrivals


def test_everybody_is_there_from_the_start_by_default():
    arrivals = Arrivals(ClientsConfig(), range(5), 0)
    assert all(arrivals.has_joined(client, 0) for client in range(5))


def test_a_seeded_share_joins_at_the_round():
    config = ClientsConfig(join_round=3, join_share=0.4)
    arrivals = Arrivals(config, range(5), 7)
    assert len(arrivals.late) == 2  # 0.4 · 5
    assert [sum(arrivals.has_joined(c, round) for c in range(5)) for round in (0, 2, 3, 9)] == [3, 3, 5, 5]
    assert Arrivals(config, range(5), 7).late == arrivals.late
    assert len({Arrivals(config, range(20), seed).late for seed in range(5)}) > 1


def test_somebody_is_always_there():
    assert len(Arrivals(ClientsConfig(join_round=1, join_share=0.99), range(4), 0).late) == 3
