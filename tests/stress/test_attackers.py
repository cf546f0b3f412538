"""Bad actors: who they are, what each kind does to a reply, what the evaluator sees, what is reported."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import ipfl
from ipfl.client.runner import ASSESS, EVALUATE
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import Ask, Record
from ipfl.engines.local import LocalEngine
from ipfl.errors import InputError
from ipfl.report.tables import run_table
from ipfl.runs.config import Config, EvaluateConfig
from ipfl.runs.metrics import Evaluation
from ipfl.stress.attackers import Adversary, balances, fell_out, performance_share
from ipfl.stress.settings import AdversaryConfig

BEFORE = np.array([1, 1, 1], np.float32)
HONEST = Record({"cluster_0": np.array([4, 5, 1], np.float32)}, {"n": 10})
"""An update of (3, 4, 0), of length 5."""
ASKED = Record({"cluster_0": BEFORE})


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.load(clients=10, samples=20, test_samples=20, model="softmax")


def adversary(kind: str, strength: float | None = None, share: float = 0.3, clients: int = 10) -> Adversary:
    config = AdversaryConfig(share=share, kind=kind, strength=strength)
    return Adversary(config, tuple(range(clients)), classes=10, seed=0)


def sent(foes: Adversary, client: int | None = None, round: int = 0) -> np.ndarray:
    """The update that an attacker sends instead of (3, 4, 0)."""
    who = foes.attackers[0] if client is None else client
    return foes.reply(who, "train", round, ASKED, HONEST).params["cluster_0"] - BEFORE


class TestWho:
    def test_a_seeded_share_of_the_clients(self):
        foes = adversary("free_rider")
        assert len(foes.attackers) == 3
        assert set(foes.attackers) < set(range(10))
        assert foes.attackers == adversary("sybil").attackers
        assert foes.attackers != replace(foes, seed=1).attackers

    def test_nobody(self, task):
        assert Adversary.of(None, task.data, 0) is None
        assert Adversary.of(AdversaryConfig(), task.data, 0) is None
        assert Adversary.of(AdversaryConfig(share=0.01), task.data, 0) is None  # a tenth of a client
        assert Adversary.of(AdversaryConfig(share=0.2), task.data, 0) is not None

    @pytest.mark.parametrize("setting", ["share=1", "share=-0.1", "kind=evil", "strength=0"])
    def test_settings_that_make_no_sense(self, setting):
        with pytest.raises(InputError, match=r"adversary\."):
            Config.load(None, [f"adversary.{setting}"])

    @pytest.mark.parametrize("kind", ["free_rider", "sign_flip", "liar", "colluder"])
    @pytest.mark.parametrize("action", ["train", "preference", "appraise", "loss"])
    def test_honest_clients_reply_honestly(self, kind, action):
        foes = adversary(kind)
        honest = next(client for client in range(10) if client not in foes.attackers)
        assert foes.reply(honest, action, 0, ASKED, HONEST) is HONEST


class TestUpdates:
    def test_free_rider(self):
        assert sent(adversary("free_rider")).tolist() == [0, 0, 0]

    def test_noise_of_the_honest_length(self):
        foes = adversary("noisy_free_rider", strength=2)
        assert np.linalg.norm(sent(foes)) == pytest.approx(10, rel=1e-5)
        assert (sent(foes) == sent(foes)).all()
        assert (sent(foes) != sent(foes, round=1)).any()
        assert (sent(foes) != sent(foes, foes.attackers[1])).any()

    @pytest.mark.parametrize(("strength", "expected"), [(None, [-3, -4, 0]), (2, [-6, -8, 0])])
    def test_sign_flip(self, strength, expected):
        assert sent(adversary("sign_flip", strength)).tolist() == expected

    @pytest.mark.parametrize(("strength", "expected"), [(None, [30, 40, 0]), (2, [6, 8, 0])])
    def test_scaled(self, strength, expected):
        assert sent(adversary("scaled", strength)).tolist() == expected

    def test_sybils_send_one_update_with_little_noise(self):
        # 0.1 of length 5.
        foes = adversary("sybil", strength=0.1)
        noise = [np.linalg.norm(sent(foes, client) - [3, 4, 0]) for client in foes.attackers]
        np.testing.assert_allclose(noise, 0.5, rtol=1e-4)
        assert (sent(foes) != sent(foes, foes.attackers[1])).any()

    def test_colluders_send_a_common_step_of_honest_length_and_ask_for_more_of_it(self):
        foes = adversary("colluder", strength=3)
        honest = Record({**HONEST.params, "gradient_cluster_0": np.array([0, 2, 0], np.float32)}, {"n": 10})
        one, other = (foes.reply(client, "train", 4, ASKED, honest).params for client in foes.attackers[:2])
        step = one["cluster_0"] - BEFORE
        assert (one["cluster_0"] == other["cluster_0"]).all()
        assert np.linalg.norm(step) == pytest.approx(5, rel=1e-5)
        # Three times as long as the honest gradient, straight against the step.
        np.testing.assert_allclose(one["gradient_cluster_0"], -6 * step / 5, rtol=1e-4)

    def test_label_flippers_and_others_without_a_false_update_send_what_they_trained(self):
        for kind in ("label_flip", "liar"):
            np.testing.assert_allclose(sent(adversary(kind)), [3, 4, 0])

    def test_what_was_not_asked_about_stays(self):
        honest = Record({"other": np.ones(2, np.float32), "cluster_0": np.ones(9, np.float32)}, {"n": 10})
        foes = adversary("sign_flip")
        reply = foes.reply(foes.attackers[0], "train", 0, ASKED, honest)
        assert all((reply.params[name] == honest.params[name]).all() for name in honest.params)


class TestClaims:
    ASK = Record({}, {"clusters": [0, 2, 3]})

    def test_a_liar_s_favourite_is_always_right_on_many_points(self):
        foes = adversary("liar", strength=5)
        honest = Record({}, {"bids": [2, 0], "hits": [3.0, 6.0, 1.0], "n": 10})
        reply = foes.reply(foes.attackers[0], "preference", 0, self.ASK, honest)
        assert reply.facts == {"bids": [2], "hits": [0.0, 50.0, 0.0], "n": 50}
        judged = foes.reply(foes.attackers[0], "appraise", 0, ASKED, Record({}, {"cluster_0": [3.0, 10.0]}))
        assert judged.facts == {"cluster_0": [50.0, 50.0]}
        assert foes.reply(foes.attackers[0], "train", 0, ASKED, HONEST).facts == {"n": 50}

    def test_colluders_meet_in_the_first_cluster(self):
        foes = adversary("colluder")
        honest = Record({}, {"bids": [3], "hits": [3.0, 6.0, 7.0], "n": 10})
        for client in foes.attackers:
            reply = foes.reply(client, "preference", 0, self.ASK, honest)
            assert reply.facts == {"bids": [0], "hits": [10.0, 0.0, 0.0], "n": 10}

    def test_colluders_praise_their_step_when_they_are_asked_after_training(self):
        foes = adversary("colluder")
        honest = Record({"cluster_0": np.array([0, 0, 2], np.float32)}, {"cluster_0": [3.0, 10.0]})
        reply = foes.reply(foes.attackers[0], "appraise", 7, ASKED, honest)
        step = sent(foes, round=7)
        np.testing.assert_allclose(reply.params["cluster_0"], -20 * step / 5, rtol=1e-4)
        assert reply.facts == {"cluster_0": [10.0, 10.0]}


class Peek(ipfl.core.Method):
    """Tells which data a client works on, by its labels."""

    name, summary = "peek", "tells the labels"

    def on_train(self, ask, mine, me):
        labels = {part: me.data(part).y.tolist() for part in ("train", "probe", "goal")}
        return Record({}, {**labels, "test": len(me.parts.test), "draw": int(me.rng.integers(10**6))}), mine

    def init(self, setup): ...
    def round(self, state, roster, round): ...
    def offer(self, state, client): ...

    def personalize(self, offer, mine, me):
        return offer.params["model"]


@pytest.fixture
def engine(task):
    """Makes an engine whose clients peek."""

    def make(foes: Adversary | None) -> LocalEngine:
        return LocalEngine(task, Peek(), TrainConfig(), workers=0, adversary=foes)

    return make


class TestData:
    def test_label_flippers_see_other_labels_and_nobody_else_does(self, task, engine):
        foes = Adversary.of(AdversaryConfig(share=0.2, kind="label_flip"), task.data, 0)
        ask = Ask("train", {client: Record() for client in range(10)})
        with engine(None) as fair, engine(foes) as unfair:
            truth, told = fair.ask(ask, 0), unfair.ask(ask, 0)
        for client in range(10):
            shift = 1 if client in foes.attackers else 0
            for part in ("train", "probe", "goal"):
                assert told[client].facts[part] == [(y + shift) % 10 for y in truth[client].facts[part]]
            assert told[client].facts["test"] == 0  # the test data are hidden from attackers too

    def test_sybils_are_one_client_with_many_names(self, task, engine):
        foes = Adversary.of(AdversaryConfig(share=0.3, kind="sybil"), task.data, 0)
        with engine(foes) as unfair:
            told = unfair.ask(Ask("train", {client: Record() for client in range(10)}), 0)
        one, *others = foes.attackers
        assert all(told[client].facts == told[one].facts for client in others)
        honest = [told[client].facts["draw"] for client in range(10) if client not in others]
        assert len(set(honest)) == len(honest)

    @pytest.mark.parametrize("kind", ["label_flip", "sybil", "colluder", "free_rider"])
    def test_the_evaluator_is_told_the_truth(self, task, engine, kind):
        foes = Adversary.of(AdversaryConfig(share=0.5, kind=kind), task.data, 0)
        model = np.random.default_rng(0).standard_normal(len(task.network(0).read())).astype(np.float32)
        asks = [
            Ask(EVALUATE, {client: Record({"model": model}) for client in range(10)}),
            Ask(ASSESS, {0: Record({"model": model}, {"limit": 50})}),
        ]
        with engine(None) as fair, engine(foes) as unfair:
            for ask in asks:
                truth, told = fair.ask(ask, 0), unfair.ask(ask, 0)
                assert [r.facts for r in told.values()] == [r.facts for r in truth.values()]


class TestReport:
    HISTORY = (
        {"seats": [[0, 0, "random", True], [1, 0, "random", True]], "transfers": [["fee", 0, -3, 40, 0, 0]]},
        {
            "seats": [[0, 0, "performance", True], [1, 1, "performance", True], [2, 1, "random", True]],
            "transfers": [["reward", -3, 1, 30, 0, 1], ["reward", -3, 2, 10, 0, 2]],
        },
    )
    OPENING = [["open", -1, client, 100, -1, client] for client in range(3)]  # noqa: RUF012

    def test_balances(self):
        transfers = [line["transfers"] for line in self.HISTORY]
        assert balances(self.OPENING, *transfers) == {0: 60, 1: 130, 2: 110}

    def test_share_of_the_performance_seats(self):
        # None in round 0; then one of two.
        assert performance_share({0, 2}, self.HISTORY) == [None, 0.5]

    def test_outcome(self):
        foes = adversary("free_rider", share=0.34, clients=3)
        (bad,) = foes.attackers
        last = Evaluation(1, {client: 0.1 * client for client in range(3)}, {}, None, None)
        told = foes.outcome(self.OPENING, self.HISTORY, last)
        end, honest = {0: 60, 1: 130, 2: 110}, [client for client in range(3) if client != bad]
        assert told["kind"] == "free_rider"
        assert told["attackers"] == [bad]
        assert told["share"] == pytest.approx(1 / 3)
        assert told["tokens"]["attackers"] == {"median": end[bad], "net": end[bad] - 100}
        middle = sum(end[client] for client in honest) / 2  # of two, the median is the mean
        assert told["tokens"]["honest"] == {"median": middle, "net": middle - 100}
        assert told["honest_accuracy"]["mean"] == pytest.approx(sum(0.1 * c for c in honest) / 2)

    def test_without_a_market_or_an_evaluation(self):
        told = adversary("free_rider").outcome([], [{"seats": []}], None)
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
    def test_round_from_which_on_they_are_out(self, shares, expected):
        assert fell_out(shares, fair=0.2) == expected


class TestRun:
    def test_a_run_reports_its_attackers_whatever_the_number_of_workers(self, task):
        setting = AdversaryConfig(share=0.2, kind="noisy_free_rider")
        here, there = (
            ipfl.run(task, ipfl.method("ipfl"), rounds=3, adversary=setting, workers=workers)
            for workers in (0, 2)
        )
        assert here.history == there.history
        told = here.summary["adversary"]
        assert told == there.summary["adversary"]
        assert len(told["attackers"]) == 2
        assert len(told["performance_share"]) == 3
        assert set(told["tokens"]) == {"attackers", "honest"}

    def test_the_closing_table_tells_of_them(self, task):
        setting = AdversaryConfig(share=0.2, kind="sign_flip")
        summary = ipfl.run(task, ipfl.method("ipfl"), rounds=2, adversary=setting, workers=0).summary
        console = Console(width=80, record=True, file=StringIO())
        console.print(run_table(summary | {"adversary": summary["adversary"] | {"fell_out": 1}}))
        told, tokens = console.export_text(), summary["adversary"]["tokens"]
        assert "2 of kind sign_flip, out of the N_p from round 1 on" in told
        assert (
            f"attackers {tokens['attackers']['median']:.0f}, honest {tokens['honest']['median']:.0f}" in told
        )
        assert f"{100 * summary['adversary']['honest_accuracy']['mean']:.1f}" in told

    def test_honest_runs_have_none(self, task):
        assert ipfl.run(task, ipfl.method("local"), rounds=1, workers=0).summary["adversary"] is None

    @pytest.mark.parametrize("name", ["fedavg", "ipfl"])
    def test_free_riders_alone_leave_the_model_as_it_was(self, task, name):
        # All but one of ten attack, and that one is not asked: the models stay at the start.
        foes = AdversaryConfig(share=0.9, kind="free_rider")
        (honest,) = set(range(10)) - set(Adversary.of(foes, task.data, 0).attackers)
        result = ipfl.run(
            task,
            ipfl.method(name),
            rounds=1,
            train=TrainConfig(per_round=2),
            evaluate=EvaluateConfig(every=1),
            adversary=foes,
            workers=0,
        )
        start = task.network(0).read()
        assert honest not in {client for client, *_ in result.history[0]["seats"]}
        for model in result.models.values():
            np.testing.assert_allclose(model, start, atol=1e-7)

    def test_another_engine_cannot_play_them(self, task):
        def other(*_):
            raise AssertionError("not to be made")

        with pytest.raises(InputError, match="local engine"):
            ipfl.run(task, ipfl.method("fedavg"), adversary=AdversaryConfig(share=0.5), engine=other)
