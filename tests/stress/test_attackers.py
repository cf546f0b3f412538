"""Attackers: who they are, what each kind does to a reply, what the evaluator sees."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from rich.console import Console
from tests.small_runs import run_small, small_engine, small_task

import ipfl
from ipfl.client.runner import ASSESS, EVALUATE, Job
from ipfl.config.run_config import AdversaryConfig, AttackKind, FaultsConfig, StrategyConfig
from ipfl.core import Ask, Method, Record
from ipfl.data.target_kinds import Target
from ipfl.engines import refuse_wrapped_clients
from ipfl.engines.local_engine import LocalEngine
from ipfl.errors import InputError
from ipfl.report.result_tables import run_table
from ipfl.stress import attackers, make_wrapper
from ipfl.stress.attackers import Adversary, Cheating

BEFORE = np.array([1, 1, 1], np.float32)
HONEST = Record({"cluster_0": np.array([4, 5, 1], np.float32)}, {"n": 10})
"""An update of (3, 4, 0), of length 5."""
ASKED = Record({"cluster_0": BEFORE})


@pytest.fixture(scope="module")
def task() -> ipfl.Task:
    return small_task(clients=10)


def make_adversary(
    kind: str, strength: float | None = None, share: float = 0.3, clients: int = 10
) -> Adversary:
    config = AdversaryConfig(share=share, kind=kind, strength=strength)
    return Adversary(config, tuple(range(clients)), target=Target("classes", 10), seed=0)


def sent(adversary: Adversary, client: int | None = None, round: int = 0) -> np.ndarray:
    """The update that an attacker sends instead of (3, 4, 0)."""
    who = adversary.attackers[0] if client is None else client
    return adversary.reply(who, "train", round, ASKED, HONEST).params["cluster_0"] - BEFORE


class TestWho:
    def test_a_seeded_share_of_the_clients(self):
        adversary = make_adversary("free_rider")
        assert len(adversary.attackers) == 3
        assert set(adversary.attackers) < set(range(10))
        assert adversary.attackers == make_adversary("sybil").attackers
        assert adversary.attackers != replace(adversary, seed=1).attackers

    def test_nobody(self, task):
        assert Adversary.make(AdversaryConfig(), task.data, 0) is None
        assert Adversary.make(AdversaryConfig(share=0.01), task.data, 0) is None  # a tenth of a client
        assert Adversary.make(AdversaryConfig(share=0.2), task.data, 0) is not None

    @pytest.mark.parametrize("kind", ["free_rider", "sign_flip", "liar", "colluder"])
    @pytest.mark.parametrize("action", ["train", "preference", "appraise", "loss"])
    def test_honest_clients_reply_honestly(self, kind, action):
        """The adversary is not even asked about their replies, nor about what they work with."""
        adversary = make_adversary(kind)
        honest = next(client for client in range(10) if client not in adversary.attackers)
        jobs = []

        class Inner:
            task = memory = network = None

            def run(self, job, disguise=None):
                jobs.append((job, disguise))
                return HONEST

        job = Job(action, 0, honest, ASKED)
        cheating = Cheating(Inner(), adversary)
        assert cheating.run(job) is HONEST
        assert [delivery.reply for delivery in cheating.deliver(job)] == [HONEST]
        assert jobs == [(job, None)] * 2

    @pytest.mark.parametrize("kind", get_args(AttackKind))
    def test_every_kind_is_described(self, kind):
        assert f"- `{kind}`: " in attackers.__doc__
        page = (Path(__file__).parents[2] / "docs" / "adversaries.md").read_text()
        assert f"`{kind}`" in page
        assert kind in AdversaryConfig.model_fields["kind"].description
        assert make_adversary(kind).strength > 0


class TestUpdates:
    @pytest.mark.parametrize(
        ("kind", "strength", "expected"),
        [
            ("free_rider", None, [0, 0, 0]),
            ("sign_flip", None, [-3, -4, 0]),
            ("sign_flip", 2, [-6, -8, 0]),
            ("scaled", None, [30, 40, 0]),
            ("scaled", 2, [6, 8, 0]),
            ("label_flip", None, [3, 4, 0]),  # what they trained: their labels are false
            ("liar", None, [3, 4, 0]),
        ],
    )
    def test_what_is_sent(self, kind, strength, expected):
        assert sent(make_adversary(kind, strength)).tolist() == expected

    def test_noise_of_the_honest_length(self):
        adversary = make_adversary("noisy_free_rider", strength=2)
        assert np.linalg.norm(sent(adversary)) == pytest.approx(10, rel=1e-5)
        assert (sent(adversary) == sent(adversary)).all()
        assert (sent(adversary) != sent(adversary, round=1)).any()
        assert (sent(adversary) != sent(adversary, adversary.attackers[1])).any()

    def test_sybils_send_one_update_with_little_noise(self):
        # 0.1 of length 5.
        adversary = make_adversary("sybil", strength=0.1)
        noise = [np.linalg.norm(sent(adversary, client) - [3, 4, 0]) for client in adversary.attackers]
        np.testing.assert_allclose(noise, 0.5, rtol=1e-4)
        assert (sent(adversary) != sent(adversary, adversary.attackers[1])).any()

    def test_colluders_send_a_common_step_of_honest_length(self):
        adversary = make_adversary("colluder", strength=3)
        one, other = (
            adversary.reply(client, "train", 4, ASKED, HONEST).params for client in adversary.attackers[:2]
        )
        step = one["cluster_0"] - BEFORE
        assert (one["cluster_0"] == other["cluster_0"]).all()
        assert np.linalg.norm(step) == pytest.approx(5, rel=1e-5)

    def test_what_was_not_asked_about_stays(self):
        honest = Record({"other": np.ones(2, np.float32), "cluster_0": np.ones(9, np.float32)}, {"n": 10})
        adversary = make_adversary("sign_flip")
        reply = adversary.reply(adversary.attackers[0], "train", 0, ASKED, honest)
        assert all((reply.params[name] == honest.params[name]).all() for name in honest.params)


class TestClaims:
    ASK = Record({}, {"clusters": [0, 2, 3]})

    def test_a_liar_s_favourite_is_always_right_on_many_points(self):
        adversary = make_adversary("liar", strength=5)
        honest = Record({}, {"bids": [2, 0], "hits": [3.0, 6.0, 1.0], "n": 10})
        reply = adversary.reply(adversary.attackers[0], "preference", 0, self.ASK, honest)
        assert reply.facts == {"bids": [2], "hits": [0.0, 50.0, 0.0], "n": 50}
        judged = adversary.reply(
            adversary.attackers[0], "appraise", 0, ASKED, Record({}, {"cluster_0": [3.0, 10.0]})
        )
        assert judged.facts == {"cluster_0": [50.0, 50.0]}
        assert adversary.reply(adversary.attackers[0], "train", 0, ASKED, HONEST).facts == {"n": 50}

    def test_colluders_meet_in_the_first_cluster(self):
        adversary = make_adversary("colluder")
        honest = Record({}, {"bids": [3], "hits": [3.0, 6.0, 7.0], "n": 10})
        for client in adversary.attackers:
            reply = adversary.reply(client, "preference", 0, self.ASK, honest)
            assert reply.facts == {"bids": [0], "hits": [10.0, 0.0, 0.0], "n": 10}

    def test_colluders_praise_their_step_when_they_are_asked_after_training(self):
        adversary = make_adversary("colluder")
        honest = Record({"cluster_0": np.array([0, 0, 2], np.float32)}, {"cluster_0": [3.0, 10.0]})
        reply = adversary.reply(adversary.attackers[0], "appraise", 7, ASKED, honest)
        step = sent(adversary, round=7)
        np.testing.assert_allclose(reply.params["cluster_0"], -20 * step / 5, rtol=1e-4)
        assert reply.facts == {"cluster_0": [10.0, 10.0]}


class Peek(Method):
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

    def make(adversary: Adversary | None) -> LocalEngine:
        return small_engine(task, Peek(), wrap=make_wrapper(adversary, None, StrategyConfig(), 0))

    return make


class TestData:
    def test_label_flippers_see_other_labels_and_nobody_else_does(self, task, engine):
        adversary = Adversary.make(AdversaryConfig(share=0.2, kind="label_flip"), task.data, 0)
        ask = Ask("train", {client: Record() for client in range(10)})
        with engine(None) as fair, engine(adversary) as unfair:
            truth, told = fair.ask(ask, 0), unfair.ask(ask, 0)
        for client in range(10):
            shift = 1 if client in adversary.attackers else 0
            for part in ("train", "probe", "goal"):
                assert told[client].facts[part] == [(y + shift) % 10 for y in truth[client].facts[part]]
            assert told[client].facts["test"] == 0  # the test data are hidden from attackers too

    def test_sybils_are_one_client_with_many_names(self, task, engine):
        adversary = Adversary.make(AdversaryConfig(share=0.3, kind="sybil"), task.data, 0)
        with engine(adversary) as unfair:
            told = unfair.ask(Ask("train", {client: Record() for client in range(10)}), 0)
        one, *others = adversary.attackers
        assert all(told[client].facts == told[one].facts for client in others)
        honest = [told[client].facts["draw"] for client in range(10) if client not in others]
        assert len(set(honest)) == len(honest)

    @pytest.mark.parametrize("kind", ["label_flip", "sybil", "colluder", "free_rider"])
    def test_the_evaluator_is_told_the_truth(self, task, engine, kind):
        adversary = Adversary.make(AdversaryConfig(share=0.5, kind=kind), task.data, 0)
        model = np.random.default_rng(0).standard_normal(len(task.network(0).read())).astype(np.float32)
        asks = [
            Ask(EVALUATE, {client: Record({"model": model}) for client in range(10)}),
            Ask(ASSESS, {0: Record({"model": model}, {"limit": 50})}),
        ]
        with engine(None) as fair, engine(adversary) as unfair:
            for ask in asks:
                truth, told = fair.ask(ask, 0), unfair.ask(ask, 0)
                assert [r.facts for r in told.values()] == [r.facts for r in truth.values()]


class TestRun:
    def test_a_run_reports_its_attackers_whatever_the_number_of_workers(self, task):
        setting = AdversaryConfig(share=0.2, kind="noisy_free_rider")
        here, there = (
            run_small(task, "ipfl-plus", rounds=3, adversary=setting, workers=workers) for workers in (0, 2)
        )
        assert here.history == there.history
        told = here.summary["adversary"]
        assert told == there.summary["adversary"]
        assert len(told["attackers"]) == 2
        assert len(told["performance_share"]) == 3
        assert set(told["tokens"]) == {"attackers", "honest"}

    def test_the_closing_table_tells_of_them(self, task):
        setting = AdversaryConfig(share=0.2, kind="sign_flip")
        summary = run_small(task, "ipfl-plus", rounds=2, adversary=setting).summary
        console = Console(width=80, record=True, file=StringIO())
        console.print(run_table(summary | {"adversary": summary["adversary"] | {"fell_out": 1}}))
        told, tokens = console.export_text(), summary["adversary"]["tokens"]
        assert "2 of kind sign_flip, out of the N_p from round 1 on" in told
        assert (
            f"attackers {tokens['attackers']['median']:.0f}, honest {tokens['honest']['median']:.0f}" in told
        )
        assert f"{100 * summary['adversary']['honest_accuracy']['mean']:.1f}" in told

    @pytest.mark.parametrize(
        "settings",
        [
            {"adversary": AdversaryConfig(share=0.5)},
            {"faults": FaultsConfig(dropout=0.5)},
            {"strategy": StrategyConfig(cost=1)},
        ],
    )
    def test_another_engine_cannot_play_them(self, task, tmp_path, settings):
        def other(context):
            refuse_wrapped_clients(context)
            raise AssertionError("not to be made")

        with pytest.raises(InputError, match="the local engine") as error:
            run_small(task, "fedavg", tmp_path / "run", engine=other, **settings)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()
