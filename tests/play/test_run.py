"""The round loop: who is told what, who joins and leaves, and what is left after Ctrl-C."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from tests.small_runs import InterruptAfter, run_small, small_task
from tests.study.small_study import Noting
from torch import nn

import ipfl
from ipfl.config.run_config import ClientsConfig, EvaluateConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import Ask
from ipfl.errors import InputError
from ipfl.methods.one_model.fedavg import FedAvg


@pytest.fixture(scope="module")
def task():
    return small_task()


def run_three_rounds(task, method="fedavg", **options):
    return run_small(task, method, **({"rounds": 3, "evaluate": EvaluateConfig(every=1)} | options))


class Interrupted(FedAvg):
    """Ctrl-C in the middle of round 2, after its replies came in."""

    def round(self, state, roster, round):
        done = yield from super().round(state, roster, round)
        if round == 2:
            raise KeyboardInterrupt
        return done


class Broken(FedAvg):
    def round(self, state, roster, round):
        yield Ask("train", {})
        raise RuntimeError("out of luck")


class Plain(FedAvg):
    """A user's method that keeps what it needs in attributes of any kind."""

    def __init__(self, transform):
        self.transform = transform


@dataclass(frozen=True)
class Transformed(FedAvg):
    """A user's method with a hyper-parameter that JSON knows nothing of."""

    transform: object = max


class TestRun:
    @pytest.mark.parametrize("method", [Plain(max), Transformed(max)])
    def test_any_method_of_a_user_can_be_run_and_kept(self, task, tmp_path, method):
        result = run_small(task, method, tmp_path, rounds=1)
        settings = json.loads((tmp_path / "summary.json").read_text())["config"]["method"]
        assert settings == result.summary["config"]["method"]
        assert settings["name"] == f"{__name__}:{type(method).__qualname__}"

    @pytest.mark.parametrize("kind", [str, ipfl.RunOutput])
    def test_where_results_go(self, task, tmp_path, kind):
        config = ipfl.RunConfig(rounds=1)
        ipfl.run(task, FedAvg(), config, engine=ipfl.local_engine(0), out=kind(tmp_path / "run"))
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 1
        with pytest.raises(InputError, match="already holds a run"):
            ipfl.run(task, FedAvg(), config, engine=ipfl.local_engine(0), out=kind(tmp_path / "run"))

    def test_of_a_whole_config_the_given_task_and_method_are_recorded(self, task):
        config = ipfl.Config.load(None, ["rounds=1", "task.clients=9", "method.name=ipfl-plus"])
        result = ipfl.run(task, FedAvg(), config, engine=ipfl.local_engine(0), progress=False)
        assert result.summary["config"]["task"] == task.config.model_dump(mode="json")
        assert result.summary["config"]["method"] == {"name": "fedavg"}, "the one that was run"

    def test_a_run_config_in_is_the_same_recorded(self, task):
        config = ipfl.RunConfig(rounds=1, seed=3, train=TrainConfig(lr=0.2, epochs=1))
        result = ipfl.run(task, "fedavg", config, engine=ipfl.local_engine(0), progress=False)
        recorded = result.summary["config"]
        again = {key: recorded[key] for key in recorded if key not in ("task", "method")}
        assert again == config.model_dump(mode="json")
        assert (result.summary["seed"], result.summary["data_seed"]) == (3, 0)
        assert run_small(task, "fedavg", **again).history == result.history

    def test_data_of_ones_own_is_recorded_as_such(self):
        """Not as the default task, whatever the config says."""
        own = ipfl.Task.from_clients(
            [([[0.0], [1.0]] * 4, [0, 1] * 4)] * 2, model=lambda s, c: nn.Linear(1, 2)
        )
        result = ipfl.run(own, "fedavg", ipfl.Config(rounds=1), engine=ipfl.local_engine(0), progress=False)
        assert "task" not in result.summary["config"]
        told = {key: result.summary[key] for key in ("dataset", "model", "data_seed", "clients")}
        assert told == {"dataset": "own", "model": None, "data_seed": None, "clients": 2}

    def test_the_observer_hears_everything_in_order(self, task):
        heard = []
        run_three_rounds(task, observer=Noting(heard, stops=False))
        rounds = [("round", 0), ("round", 1), ("round", 2)]
        assert heard == [("start", "fedavg", 3), *rounds, ("finish",)]

    def test_and_the_end_when_it_fails(self, task):
        heard = []
        with pytest.raises(RuntimeError, match="out of luck"):
            run_three_rounds(task, Broken(), observer=Noting(heard, stops=False))
        assert heard[-1] == ("finish",)

    def test_interrupted(self, task, tmp_path):
        whole = run_three_rounds(task)
        with pytest.raises(KeyboardInterrupt, match="interrupted after 2 of 3 rounds") as stopped:
            run_three_rounds(task, Interrupted(), out=tmp_path)
        cut = stopped.value.result
        assert cut.summary["interrupted"] is True
        assert whole.summary["interrupted"] is False
        assert cut.summary["rounds"] == 2
        assert cut.history == whole.history[:2], "a round counts whole or not at all"
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
        assert cut.summary["evaluated_round"] == 1
        assert cut.personalized_accuracy == pytest.approx(
            whole.history[1]["evaluation"]["personalized_accuracy"]["mean"]
        )

    def test_budget_of_trainings(self, task):
        for train, seats in ((TrainConfig(), 3), (TrainConfig(per_round=5), 5)):  # half of 6 by default
            history = run_three_rounds(task, train=train).history
            assert [len(line["seats"]) for line in history] == [seats] * 3


@pytest.fixture(scope="module")
def reference(task):
    return run_three_rounds(task)


class TestLeaving:
    def better_for(self, reference, happy, test):
        """A reference with this accuracy on test data that is better on the goal, but for the `happy`."""
        return replace(
            reference,
            evaluations={
                round: replace(
                    one,
                    goal={i: -1.0 if i in happy else 1.0 for i in one.personalized},
                    personalized=dict.fromkeys(one.personalized, test),
                )
                for round, one in reference.evaluations.items()
            },
        )

    @pytest.mark.parametrize(("test", "opt_outs"), [(1.0, 6), (-1.0, 0)])
    def test_clients_that_gain_nothing_leave_after_the_grace_period(self, task, reference, test, opt_outs):
        """Whatever the reference's accuracy on test data is, which decides who opts out alone."""
        rival = self.better_for(reference, {0, 3}, test)
        clients = ClientsConfig(leave=True, grace=1)
        result = run_three_rounds(task, reference=rival, clients=clients)
        # Evaluated after rounds 0, 1, 2; round 1 is the first after the grace period.
        assert [line["clients"] for line in result.history] == [6, 6, 2]
        assert [seat.client for seat in result.history[2]["seats"]] == [0, 3]
        assert result.summary["left"] == 4
        assert result.summary["opt_outs"] == opt_outs

    def test_points_that_decide_are_not_trained_on(self):
        with pytest.raises(InputError, match=r"clients.leave = true decides by points"):
            ipfl.RunConfig.of({"clients": {"leave": True}, "train": {"use_probe": True}})

    def test_the_reference_s_newest_evaluation_counts(self, task):
        every_second = run_three_rounds(task, evaluate=EvaluateConfig(every=2))
        assert sorted(every_second.evaluations) == [1, 2]
        assert every_second.reference(0) is None
        assert every_second.reference(1) == every_second.evaluations[1].personalized
        assert every_second.reference(9) == every_second.evaluations[2].personalized


class TestJoining:
    """A fifth of the clients, 1 of 6, joins in round 2."""

    CLIENTS = ClientsConfig(join_round=2)

    def test_a_seeded_share_joins_at_the_round(self, task):
        trained = []
        for seed in range(6):
            result = run_small(task, "fedavg", rounds=4, clients=self.CLIENTS, seed=seed)
            assert [line["clients"] for line in result.history] == [5, 5, 6, 6]
            trained.append(frozenset(seat.client for line in result.history[:2] for seat in line["seats"]))
        assert len({*trained}) > 1
        assert all(len(one) <= 5 for one in trained)

    def test_who_was_late_is_late_after_a_resume(self, task, tmp_path):
        options = {"rounds": 4, "clients": self.CLIENTS}
        whole = run_small(task, "fedavg", **options)
        for stop in (0, 1, 2):
            out = tmp_path / str(stop)
            with pytest.raises(ipfl.Interrupted):
                run_small(task, "fedavg", out, observer=InterruptAfter(stop), **options)
            assert run_small(task, "fedavg", out, resume=True, **options).history == whole.history
