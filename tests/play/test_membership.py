"""Clients that join in the middle of a run; who leaves is in `test_run.py`."""

import pytest
from tests.small_runs import InterruptAfter, run_small, small_task

import ipfl
from ipfl.config.run_config import ClientsConfig


@pytest.fixture(scope="module")
def task():
    return small_task(clients=5)


def known(result):
    """How many clients there are to ask, by round."""
    return [line["clients"] for line in result.history]


def test_a_seeded_share_joins_at_the_round(task):
    # 0.2 · 5 = 1 client is late.
    clients = ClientsConfig(join_round=2)
    trained = []
    for seed in range(6):
        result = run_small(task, "fedavg", rounds=4, clients=clients, seed=seed)
        assert known(result) == [4, 4, 5, 5]
        trained.append(frozenset(seat.client for line in result.history[:2] for seat in line["seats"]))
    assert len({*trained}) > 1
    assert all(len(one) <= 4 for one in trained)


def test_who_was_late_is_late_after_a_resume(task, tmp_path):
    options = {"rounds": 4, "clients": ClientsConfig(join_round=2)}
    whole = run_small(task, "fedavg", **options)
    for stop in (0, 1, 2):
        out = tmp_path / str(stop)
        with pytest.raises(ipfl.Interrupted):
            run_small(task, "fedavg", out, observer=InterruptAfter(stop), **options)
        assert run_small(task, "fedavg", out, resume=True, **options).history == whole.history
