"""Runs that end before their last round, and runs that are extended beyond it."""

import pytest
from tests.small_runs import run_small, small_task

import ipfl
from ipfl.play.metrics import Evaluation, is_learned


def evaluations(scores):
    """Round → evaluation; one client that has this accuracy on its goal, and another on its test data."""
    return {r: Evaluation(r, {0: 1 - s}, {}, None, None, goal={0: s}) for r, s in scores.items()}


class TestDecision:
    @pytest.mark.parametrize(
        "scores, patience, expected",
        [
            ({}, 1, False),
            ({0: 0.5}, 1, False),
            ({0: 0.5, 1: 0.5}, 1, True),  # no better for one round
            ({0: 0.5, 1: 0.6}, 1, False),
            ({0: 0.5, 1: 0.6, 2: 0.5}, 2, False),  # the best is one round old
            ({0: 0.5, 1: 0.6, 2: 0.5, 3: 0.6}, 2, True),  # as good is not better
            ({0: 0.5, 4: 0.4}, 4, True),  # rounds count, not evaluations
            ({0: 0.5, 4: 0.4}, 5, False),
            ({0: 0.5, 9: 0.1}, None, False),
        ],
    )
    def test_by_hand(self, scores, patience, expected):
        assert is_learned(evaluations(scores), patience) is expected

    def test_without_goals_nothing_is_decided(self):
        assert not is_learned({r: Evaluation(r, {0: 0.5}, {}, None, None) for r in range(5)}, 1)

    def test_the_goal_must_be_new_to_the_models(self):
        with pytest.raises(ipfl.InputError, match="patience decides by points"):
            ipfl.RunConfig(patience=3, train={"use_probe": True})


STILL = {"evaluate": {"every": 1}, "train": {"lr": 1e-9}}
"""Nothing is learned: the first evaluation stays the best."""


def test_a_run_that_stops_early_ends_in_order_and_stays_ended(tmp_path):
    task = small_task(unseen=2)
    result = run_small(task, "fedavg", tmp_path / "run", rounds=9, patience=2, **STILL)
    assert len(result.history) == 3  # round 0 is the best; 2 − 0 ≥ 2
    assert result.summary["stopped_early"] is True
    assert result.last.round == 2
    assert len(result.last.unseen) == 2  # evaluated after the last round, whichever it is
    assert result.model(0) is not None  # the last checkpoint is there
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = run_small(task, "fedavg", tmp_path / "run", rounds=9, patience=2, resume=True, **STILL)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == lines
    assert again.summary["stopped_early"] is True


@pytest.mark.parametrize("method", ["ipfl-plus", "fedavg"])
def test_an_extended_run(tmp_path, method):
    """Rounds that are added follow those that are there; a method that plans nothing by the number of rounds
    ends where a run of as many rounds ends."""
    task, settings = small_task(), {"evaluate": {"every": 1}}
    short = run_small(task, method, tmp_path / "run", rounds=2, **settings)
    longer = run_small(task, method, tmp_path / "run", rounds=4, resume=True, **settings)
    assert longer.history[:2] == short.history
    assert len(longer.history) == 4
    assert longer.opening == short.opening
    assert ipfl.load(tmp_path / "run").model(1) is not None
    if method == "fedavg":
        whole = run_small(task, method, tmp_path / "whole", rounds=4, **settings)
        assert longer.history == whole.history
    with pytest.raises(ipfl.InputError, match="rounds"):
        run_small(task, method, tmp_path / "run", rounds=3, resume=True, **settings)
