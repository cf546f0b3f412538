"""Keys and settings of runs."""

import pytest
from tests.reproduce.small_experiment import record

from ipfl.errors import InputError
from ipfl.reproduce.plan import plan_experiment, plan_run, settings_of
from ipfl.reproduce.tuning import choose_best, grid_points, plan_tuning

BASE = {"task.clients": 4, "rounds": 2}


def key(label="ditto", seed=0, base=BASE, own=None, reference=None):
    return plan_run(label, seed, base, own or {}, reference).key


def test_the_key_is_made_of_what_decides_a_run():
    assert key() == key()
    assert key() == key(own={"lam": 1.0}), "its default"
    others = [
        key(seed=1),
        key("fedavg"),
        key("ditto:lam=2"),
        key(own={"train.lr": 0.3}),
        key(base={**BASE, "rounds": 3}),
    ]
    assert len({key(), *others}) == 6
    assert key("ditto:lam=2") == key(own={"lam": 2.0})


def test_clients_that_leave_make_the_reference_a_part_of_the_run():
    leave = {**BASE, "clients.leave": True}
    fedavg, local = plan_run("fedavg", 0, leave, {}), plan_run("local", 0, leave, {})
    assert not fedavg.config.clients.leave, "nobody can leave the reference for being worse than itself"
    run = plan_run("ditto", 0, leave, {}, fedavg)
    assert run.config.clients.leave
    assert run.reference is fedavg
    assert run.key != key(base=leave, reference=local)
    assert key(reference=fedavg) == key(reference=local) == key(), (
        "nobody leaves: the reference is no part of it"
    )


def test_variants_have_the_tuning_of_what_they_are_variants_of():
    tuned = {"a": {"train.lr": 0.3, "warmup": 4}, "a:preset=paper": {"explore": 0.1}}
    assert settings_of("a", tuned) == tuned["a"]
    assert settings_of("a:incentive=false", tuned) == tuned["a"]
    assert settings_of("a:warmup=0", tuned) == {"train.lr": 0.3}
    assert settings_of("a:preset=paper:incentive=false", tuned) == {"explore": 0.1}
    assert settings_of("b", tuned) == {}


def test_settings_of_the_method_and_of_the_training(tiny):
    (runs,) = plan_experiment(tiny, "smoke", [3], {"ditto": {"lam": 0.1, "train.lr": 0.2}}).values()
    ditto, fedavg = runs["ditto", 3], runs["fedavg", 3]
    assert (ditto.method.lam, ditto.config.train.lr, ditto.config.train.batch_size) == (0.1, 0.2, 7)
    assert (fedavg.config.train.lr, fedavg.config.train.batch_size) == (0.1, 32)
    assert ditto.config.seed == 3


class TestTuning:
    def test_the_grid_has_every_learning_rate_with_every_value(self, tiny):
        assert grid_points("ditto", 0.1) == [
            {"train.lr": 0.1, "lam": 0.1},
            {"train.lr": 0.1, "lam": 1.0},
            {"train.lr": 0.2, "lam": 0.1},
            {"train.lr": 0.2, "lam": 1.0},
        ]

    def test_held_back_points_stay_held_back(self, tiny):
        candidates = plan_tuning(tiny, "smoke", [100, 101])
        assert len(candidates) == 4 + 2
        assert all(len(one.runs) == 2 for one in candidates)
        assert not any(run.config.train.use_probe for one in candidates for run in one.runs)

        assert not any(run.config.adapt.is_on for one in candidates for run in one.runs)

    def test_seeds_of_the_results_are_refused(self, tiny):
        with pytest.raises(InputError, match="from 100 on, not 7"):
            plan_tuning(tiny, "smoke", [100, 7])

    def test_the_best_on_goal_is_chosen_and_failed_points_are_not(self, tiny):
        candidates = [one for one in plan_tuning(tiny, "smoke", [100, 101]) if one.label == "ditto"]
        # Means 0.5, 0.6, 0.6: the first of equal ones is taken. The last would be best, but a run failed.
        goals = [(0.5, 0.5), (0.7, 0.5), (0.6, 0.6), (0.9, None)]

        records = {
            run.key: record(goal=goal)
            for one, pair in zip(candidates, goals, strict=True)
            for run, goal in zip(one.runs, pair, strict=True)
            if goal is not None
        }
        (entry,) = choose_best(candidates, records).values()
        assert entry["chosen"] == {"train.lr": 0.1, "lam": 1.0}
        assert entry["goal_accuracy"] == 0.6
        assert [point["mean"] for point in entry["grid"]] == [0.5, 0.6, 0.6, None]
