"""What every method owes to every engine, checked for each name in the registry.

A new method is included as soon as it is registered: nothing here knows any of them. The template of
CONTRIBUTING.md goes through the same tests.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.contract.plays import (
    ROUNDS,
    STRANGER,
    TINY,
    Play,
    digest,
    has_usable_models,
    look_at_everything,
    unless_refused,
)
from tests.federation import run_here
from tests.small_nets import small_model
from tests.template import TEMPLATE

import ipfl
from ipfl.client.client import Client
from ipfl.config.run_config import FaultsConfig
from ipfl.config.train_section import TrainConfig
from ipfl.core import (
    HasClusters,
    HasReport,
    Roster,
)
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger.store import RunStore
from ipfl.methods import method_class, method_reference
from ipfl.training.task import Task


class TestSeed:
    def test_another_one_is_another_run(self, task, method, played):
        """That the same seed is the same run is told by `TestFaults`."""
        with Play(task, method, seed=1) as play:
            assert digest(play.rounds().state) != digest(played.state)


class TestParts:
    def test_held_back_points_are_read_as_declared(self, task, method, monkeypatch):
        """Who needs points that nobody trains on looks at them; who does not never looks at `probe`.

        At `goal` it may look, to choose among models as well as it can. `test` is always hidden.
        """
        read, data = set(), Client.data
        monkeypatch.setattr(
            Client, "data", lambda me, part, limit=None: read.add(part) or data(me, part, limit)
        )
        run_here(task, method, rounds=ROUNDS)
        assert "probe" not in read or method.needs_probe
        if method.needs_probe and method_reference(method) != TEMPLATE:
            assert read & {"probe", "goal"}

    def test_without_need_probe_is_trained_on_if_wanted(self, task, method):
        here, there = (
            run_here(task, method, rounds=1, train=TrainConfig(use_probe=use)) for use in (False, True)
        )
        if method.needs_probe:  # not for the models of all; at deployment a client may use all it has
            assert digest(here.models) == digest(there.models)
        else:
            assert digest((here.state, here.evaluations)) != digest((there.state, there.evaluations))


class TestState:
    def test_nothing_given_is_changed(self, task, method):
        """State goes in and comes out: an engine may keep the old one, or run a round again."""
        with Play(task, method) as play:
            before = digest(play.setup)
            assert digest(method.init(play.setup)) == digest(play.state)
            assert digest(play.setup) == before
            for round in range(ROUNDS):
                state, given, so_far = play.state, digest(play.state), len(play.engine.asks)
                play.round(round)
                assert digest(state) == given
                look_at_everything(method, state)
                assert digest(state) == given
                # The same round from the same state asks the clients the same.
                again = next(method.round(state, Roster(task.data.clients), round))
                assert digest(again) == digest(play.engine.asks[so_far])


class TestMissingReplies:
    @pytest.mark.parametrize(
        "drop",
        [
            lambda ask, round, client: round == 1,
            lambda ask, round, client: ask.action != "train",
            lambda ask, round, client: ask.action == "train",
            lambda ask, round, client: True,
        ],
        ids=["a whole round", "all but training", "all training", "all"],
    )
    def test_lost_replies(self, task, method, drop):
        with Play(task, method, drop=drop) as play:
            before = {name: vector.tobytes() for name, vector in method.models(play.state).items()}
            play.rounds()
            after = {name: vector.tobytes() for name, vector in method.models(play.state).items()}
            assert after == before or any(play.engine.replies), "without any reply the models stay"
            assert has_usable_models(play)
            assert 0 <= play.evaluated(0).facts["hits"] <= 20
            assert json.dumps(play.lines(), allow_nan=False)

    @pytest.mark.parametrize("first", [0, 1], ids=["from the start", "after a round of all"])
    def test_only_one_client_is_left(self, task, method, first):
        with Play(task, method) as play:
            for round in range(first):
                play.round(round)
            alone = len(play.engine.asks)
            for round in range(first, ROUNDS):
                play.round(round, roster=(3,))
            asked = {client for ask in play.engine.asks[alone:] for client in ask.to if client >= 0}
            assert asked <= {3}
            assert has_usable_models(play)


class TestFaults:
    """Through the whole round loop, by a fault plan: see docs/faults.md."""

    def test_everything_at_once(self, task, method, tmp_path):
        """Drop-outs, late replies, crashed workers and broken replies: the same on any number of workers."""
        faults = FaultsConfig(dropout=0.3, slow=0.1, crash=0.1, broken=0.2)
        train = TrainConfig(per_round=4, min_clients=2)
        adapt = {"epochs": 1} if method.gives_one_network else {}
        config = ipfl.RunConfig(rounds=6, train=train, faults=faults, adapt=adapt)
        here, there = (
            ipfl.run(
                task, method, config, engine=ipfl.local_engine(workers=workers), out=tmp_path / str(workers)
            )
            for workers in (0, 2)
        )
        assert verify_run(RunStore.open(tmp_path / "2")) is None
        assert here.history == there.history
        assert digest(here.state) == digest(there.state)
        assert here.evaluations == there.evaluations  # but for the seconds of the last step
        assert {line.get("rolled_back", False) for line in here.history} == {True, False}
        for model in here.models.values():
            assert np.abs(model).max() < 1e3

    @pytest.mark.parametrize("kind", ["nan", "shape", "enormous"])
    def test_every_reply_is_broken(self, task, method, played, kind):
        """Whatever is asked for, and however it comes back: the server goes on, and no reply counts."""
        faults = FaultsConfig(broken=1, broken_kinds=[kind])
        result = run_here(task, method, rounds=2, faults=faults)
        assert result.summary["rounds"] == 2
        sends_vectors = any(reply.params for _, replies in played.exchanged for reply in replies.values())
        is_broken = sends_vectors or kind != "shape"  # facts alone have no shape
        kinds = {event.kind for line in result.history for event in line["events"]}
        assert bool(kinds & {"invalid_reply", "diverged"}) == is_broken
        assert any(seat.delivered for line in result.history for seat in line["seats"]) != is_broken

    def test_a_round_below_the_quorum_leaves_nothing_behind(self, task, method, tmp_path):
        """Everyone trains, but too few; or nobody is there: either way all is as it was."""
        gone = FaultsConfig(dropout=1, dropout_when=["before"])
        states = []
        for min_clients, faults in ((4, FaultsConfig()), (1, gone)):
            train, out = TrainConfig(per_round=3, min_clients=min_clients), tmp_path / str(min_clients)
            result = run_here(task, method, rounds=2, train=train, faults=faults, out=out)
            assert [line["rolled_back"] for line in result.history] == [True, True]
            assert not any(seat.delivered for line in result.history for seat in line["seats"])
            assert not [*(out / "memory").glob("*/*"), *(out / "client_models").glob("*/*")]
            states.append(digest(result.state))
        assert states[0] == states[1]


class TestClients:
    def test_unseen_clients_get_a_model(self, task, played):
        """From the offer and their own data alone, or a clear error; they are to remember nothing of it."""
        (unseen,) = task.data.unseen
        evaluated = unless_refused(lambda: played.evaluated(unseen))
        assert evaluated is None or evaluated.facts["n"] == 20
        memory = played.local.runner.memory
        assert (memory.load(unseen).params, memory.load(unseen).facts) == ({}, {})

    def test_an_evaluation_changes_no_memory(self, task, played):
        """Neither of a client that trained nor of one that did not."""
        memory = played.local.runner.memory
        before = {client: digest(memory.load(client)) for client in task.data.clients}
        first = [played.evaluated(client).facts for client in task.data.clients]
        assert {client: digest(memory.load(client)) for client in task.data.clients} == before
        assert [played.evaluated(client).facts for client in task.data.clients] == first

    def test_offers_to_clients_that_the_server_never_met(self, method, played):
        offer = unless_refused(lambda: method.offer(played.state, STRANGER))
        for vector in offer.params.values() if offer else ():
            assert vector.dtype == np.float32
            assert np.isfinite(vector).all()
        assert offer is None or digest(offer) == digest(method.offer(played.state, STRANGER + 1))

    def test_offers_hold_models_and_figures_not_data(self, method):
        """The same number of floats and facts however much data the clients have."""
        shapes = []
        for samples in (20, 40):
            model = small_model(method_reference(method))
            task = Task.load(**TINY | {"samples": samples, "model": model})
            with Play(task, method) as play:
                offer = method.offer(play.rounds().state, 0)
            shapes.append(
                {name: np.size(value) for name, value in [*offer.facts.items(), *offer.params.items()]}
            )
        assert shapes[0] == shapes[1]


class TestLastStep:
    """`[adapt]`, for every method: `NAME+adapt`."""

    CONFIG = ipfl.RunConfig(rounds=ROUNDS, adapt={"epochs": "auto", "label_prior": True})

    def test_comes_after_the_rounds_and_changes_what_clients_predict_with(self, task, method):
        if not method.gives_one_network:
            with pytest.raises(InputError, match=f"^\\[adapt\\] needs .*{method.name}"):
                ipfl.run(task, method, self.CONFIG, engine=ipfl.local_engine(workers=0))
            return
        here = ipfl.run(task, method, self.CONFIG, engine=ipfl.local_engine(workers=0))
        without = run_here(task, method, rounds=ROUNDS)
        assert digest(here.state) == digest(without.state)
        assert 15 <= here.summary["last_step_passes"] <= 60  # five or twenty epochs of three passes
        assert here.summary["last_step_seconds"] > 0
        assert without.summary["last_step_passes"] is without.summary["last_step_seconds"] is None
        for client in task.data.clients[:2]:
            ours, theirs = (result.model(client).state_dict() for result in (here, without))
            assert not all(np.array_equal(ours[name], theirs[name]) for name in ours)


class TestMessages:
    def test_facts_are_flat_and_vectors_are_models(self, task, method, played):
        """An int, float, str, bool or None, or a list of these: what JSON and Flower can carry."""

        def plain(value):
            return type(value) in (int, float, str, bool, type(None))

        offers = [method.offer(played.state, client) for client in task.data.clients]
        records = [r for ask, replies in played.exchanged for r in (*ask.to.values(), *replies.values())]
        assert len(records) > 2 * ROUNDS
        for record in [*records, *offers]:
            json.dumps(dict(record.facts), allow_nan=False)
            for name, fact in record.facts.items():
                assert type(name) is str
                flat = all(map(plain, fact)) if type(fact) is list else plain(fact)
                assert flat, f"{name}: {fact!r}"
            for name, vector in record.params.items():
                assert vector.dtype == np.float32, name
                assert vector.ndim == 1, name

    def test_what_a_round_reports_is_json(self, method, played):
        assert json.dumps(played.lines(), allow_nan=False)
        for done in played.done:
            assert done.seats
            for event in done.events:
                assert event.kind.isidentifier()
                assert "\n" not in event.text
        if isinstance(method, HasReport):
            assert json.loads(json.dumps(dict(method.report(played.state)), allow_nan=False))

    def test_the_budget_of_trainings_is_kept(self, task, played):
        """At most `per_round` clients train in a round, and nobody is asked who is not there."""
        trained = [len(ask.to) for ask in played.engine.asks if ask.action == "train"]
        assert len(trained) == ROUNDS
        assert 0 < max(trained) <= 3
        known = {*task.data.clients, *played.setup.task.holdouts}
        assert {client for ask in played.engine.asks for client in ask.to} <= known

    def test_seats_are_those_that_were_asked_to_train(self, task, method):
        with Play(task, method, drop=lambda ask, round, client: client == 2) as play:
            play.rounds()
        asks = [(ask, replies) for ask, replies in play.exchanged if ask.action == "train"]
        for done, (ask, replies) in zip(play.done, asks, strict=True):
            assert {seat.client for seat in done.seats} == set(ask.to)
            assert {seat.client for seat in done.seats if seat.delivered} == set(replies)


class TestDescription:
    def test_name_and_summary(self, method):
        assert method_class(method_reference(method)) is type(method)
        assert method_reference(method) in (method.name, TEMPLATE)
        assert "\n" not in method.summary
        assert len(method.summary) > 10

    def test_preferences_name_clusters_that_exist(self, task, method, played):
        preferred = method.preferences(played.state) if isinstance(method, HasClusters) else {}
        assert set(preferred) <= set(task.data.clients)
        assert {f"cluster_{k}" for k in preferred.values()} <= set(method.models(played.state))
        assert bool(preferred) == isinstance(method, HasClusters)
