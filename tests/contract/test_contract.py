"""What every method owes to every engine, checked for each name in the registry.

A new method is included as soon as it is registered: nothing here knows any of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipfl
from ipfl.client.memory import ClientMemory
from ipfl.client.runner import EVALUATE
from ipfl.client.settings import TrainConfig
from ipfl.client.task import Task
from ipfl.core import Ask, Method, Record, Replies, Roster, Round, Setup, holdout_id
from ipfl.core.sections import Section
from ipfl.engines.local import LocalEngine
from ipfl.errors import NotSupportedError
from ipfl.methods import METHODS, method_class
from ipfl.methods.client_model_store import ClientModelStore
from ipfl.runs.config import EvaluateConfig
from ipfl.stress.settings import FaultsConfig

ROUNDS = 3
STRANGER = 10**6
TINY = {"clients": 6, "samples": 20, "test_samples": 20, "model": "softmax"}

Drop = Callable[[Ask, int, int], bool]
"""Whether a client's reply to an ask in a round gets lost."""


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.load(**TINY, unseen=1)


@pytest.fixture(params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> Method[Any]:
    return ipfl.method(request.param)


def digest(thing: Any) -> str:
    """A hash of everything inside: dataclasses, mappings, sequences, arrays, scalars."""
    found = hashlib.sha256()

    def visit(part: Any) -> None:
        found.update(type(part).__name__.encode())
        if isinstance(part, ClientModelStore):
            for client in part.clients:
                visit((client, part[client]))
        elif dataclasses.is_dataclass(part):
            for field in dataclasses.fields(part):
                found.update(field.name.encode())
                visit(getattr(part, field.name))
        elif isinstance(part, Section):
            visit(part.model_dump())
        elif callable(part):
            pass  # the setup's way to other starts
        elif isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        elif isinstance(part, Mapping):
            for key, value in part.items():
                visit(key)
                visit(value)
        elif isinstance(part, list | tuple):
            for value in part:
                visit(value)
        elif isinstance(part, set | frozenset):
            visit(sorted(part))
        else:
            assert isinstance(part, int | float | str | bytes | np.generic | None), (
                f"a state should hold plain values, not {type(part)}"
            )
            found.update(repr(part).encode())

    visit(thing)
    return found.hexdigest()


class Play:
    """A method's rounds on the plainest engine, with all that was said, and replies lost on the way."""

    def __init__(self, task: Task, method: Method[Any], *, seed: int = 0, drop: Drop = lambda *_: False):
        self.task, self.method, self.drop = task, method, drop
        self.engine = LocalEngine(task, method, TrainConfig(), seed=seed, workers=0)
        self.folder = tempfile.TemporaryDirectory()
        self.setup = Setup(
            params=task.network(seed).read(),
            clients=task.data.clients,
            per_round=3,
            rounds=ROUNDS,
            classes=task.data.classes,
            seed=seed,
            holdouts=tuple(holdout_id(distribution) for distribution in task.holdouts),
            fresh=lambda number: task.network(1000 + number).read(),
            shelf=ClientModelStore(ClientMemory(Path(self.folder.name))),
        )
        self.state = method.init(self.setup)
        self.said: list[tuple[Ask, Replies]] = []
        self.done: list[Round[Any]] = []

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def round(self, round: int, roster: tuple[int, ...] | None = None) -> Round[Any]:
        talk = self.method.round(self.state, Roster(roster or self.task.data.clients), round)
        try:
            ask = next(talk)
            while True:
                replies = self.engine.ask(ask, round)
                replies = {c: r for c, r in replies.items() if not self.drop(ask, round, c)}
                self.said.append((ask, replies))
                ask = talk.send(replies)
        except StopIteration as end:
            done: Round[Any] = end.value
        self.done.append(done)
        self.state = done.state
        return done

    def rounds(self) -> Play:
        for round in range(ROUNDS):
            self.round(round)
        return self

    def deployed(self, client: int) -> Record:
        """The evaluator's reply for what this client would deploy now."""
        offer = self.method.offer(self.state, client)
        return self.engine.ask(Ask(EVALUATE, {client: offer}), ROUNDS)[client]


def model_is_sound(play: Play) -> bool:
    vectors = play.method.models(play.state).values()
    size = len(play.setup.params)
    return all(v.shape == (size,) and v.dtype == np.float32 and np.isfinite(v).all() for v in vectors)


def unless_refused(call: Callable[[], Record]) -> Record | None:
    """The record, or None where a method says that it has nothing for such a client."""
    try:
        return call()
    except NotSupportedError:
        return None


class TestDeterminism:
    def test_same_seed_same_everything(self, task, method):
        plays = []
        for seed in (1, 1, 2):
            with Play(task, method, seed=seed) as play:
                plays.append(play.rounds())
        one, same, other = plays
        assert digest(one.state) == digest(same.state)
        assert [digest(done) for done in one.done] == [digest(done) for done in same.done]
        assert digest(one.state) != digest(other.state)

    def test_workers_do_not_matter(self, task, method):
        evaluate = EvaluateConfig(every=1)
        here, there = (
            ipfl.run(task, method, rounds=ROUNDS, evaluate=evaluate, workers=workers) for workers in (0, 2)
        )
        assert here.history == there.history
        assert digest(here.state) == digest(there.state)
        assert digest(here.evaluations) == digest(there.evaluations)


class TestState:
    def test_nothing_given_is_changed(self, task, method):
        """State goes in and comes out: an engine may keep the old one, or run a round again."""
        with Play(task, method) as play:
            before = digest(play.setup)
            assert digest(method.init(play.setup)) == digest(play.state)
            assert digest(play.setup) == before
            for round in range(ROUNDS):
                state, given, so_far = play.state, digest(play.state), len(play.said)
                play.round(round)
                assert digest(state) == given
                method.offer(state, 0), method.models(state), method.preferences(state), method.report(state)
                assert digest(state) == given
                # The same round from the same state says the same to the clients.
                again = next(method.round(state, Roster(task.data.clients), round))
                assert digest(again) == digest(play.said[so_far][0])

    def test_nothing_is_kept_on_the_method(self, task, method):
        before = dict(vars(method))
        with Play(task, method) as play:
            play.rounds()
        assert vars(method) == before


class TestTrouble:
    @pytest.mark.parametrize(
        "drop",
        [
            lambda ask, round, client: client % 2 == 0,
            lambda ask, round, client: round == 1,
            lambda ask, round, client: ask.action != "train",
            lambda ask, round, client: ask.action == "train",
            lambda ask, round, client: True,
        ],
        ids=["half of the clients", "a whole round", "all but training", "all training", "everyone, always"],
    )
    def test_lost_replies(self, task, method, drop):
        with Play(task, method, drop=drop) as play:
            play.rounds()
            assert model_is_sound(play)
            assert 0 <= play.deployed(0).facts["hits"] <= 20
            json.dumps([dict(done.facts) for done in play.done], allow_nan=False)

    def test_nobody_trained_nothing_learned(self, task, method):
        with Play(task, method, drop=lambda *_: True) as play:
            before = {name: vector.tobytes() for name, vector in method.models(play.state).items()}
            play.round(0)
            assert {n: v.tobytes() for n, v in method.models(play.state).items()} == before

    @pytest.mark.parametrize("first", [0, 1], ids=["from the start", "after a round of all"])
    def test_only_one_client_is_left(self, task, method, first):
        with Play(task, method) as play:
            for round in range(first):
                play.round(round)
            alone = len(play.said)
            for round in range(first, ROUNDS):
                play.round(round, roster=(3,))
            asked = {client for ask, _ in play.said[alone:] for client in ask.to if client >= 0}
            assert asked <= {3}
            assert model_is_sound(play)

    @pytest.mark.parametrize("share", [2, 1], ids=["some", "all"])
    def test_broken_vectors_are_left_out(self, task, method, share):
        """A client whose training diverged sends NaN: no server model may become NaN."""

        class Diverged(LocalEngine):
            def ask(self, ask, round):
                replies = dict(super().ask(ask, round))
                for client in [client for client in replies if client % share == 0]:
                    broken = {name: v * np.float32("nan") for name, v in replies[client].params.items()}
                    replies[client] = Record(broken, replies[client].facts)
                return replies

        with Play(task, method) as play:
            play.engine.close()
            play.engine = Diverged(task, method, TrainConfig(), workers=0)
            play.rounds()
            assert model_is_sound(play)
            json.dumps([dict(done.facts) for done in play.done], allow_nan=False)


class TestFaults:
    """Through the whole round loop, by a fault plan: see docs/faults.md."""

    def test_everything_at_once(self, task, method, tmp_path):
        """Drop-outs, late replies, crashed workers and broken replies: the same on any number of workers."""
        faults = FaultsConfig(dropout=0.3, slow=0.1, crash=0.1, broken=0.2)
        train = TrainConfig(per_round=4, min_clients=2)
        options = {"rounds": 6, "train": train, "faults": faults}
        here, there = (
            ipfl.run(task, method, workers=workers, out=tmp_path / str(workers), **options)
            for workers in (0, 2)
        )
        assert here.history == there.history
        assert digest(here.state) == digest(there.state)
        assert {line.get("void", False) for line in here.history} == {True, False}
        for model in here.models.values():
            assert np.abs(model).max() < 1e3

    @pytest.mark.parametrize("kind", ["nan", "infinite", "shape", "enormous"])
    def test_every_reply_is_broken(self, task, method, kind):
        """Whatever is asked for, and however it comes back: the server goes on."""
        faults = FaultsConfig(broken=1, broken_kinds=[kind])
        result = ipfl.run(task, method, rounds=2, faults=faults, workers=0)
        assert result.summary["rounds"] == 2

    def test_a_void_round_leaves_nothing_behind(self, task, method, tmp_path):
        """Everyone trains, but too few; or nobody is there: either way all is as it was."""
        gone = FaultsConfig(dropout=1, dropout_when=["before"])
        states = []
        for least, faults in ((4, None), (1, gone)):
            train, out = TrainConfig(per_round=3, min_clients=least), tmp_path / str(least)
            result = ipfl.run(task, method, rounds=2, train=train, faults=faults, workers=0, out=out)
            assert [line["void"] for line in result.history] == [True, True]
            assert not any(did for line in result.history for *_, did in line["seats"])
            assert not [*(out / "memory").glob("*/*"), *(out / "shelf").glob("*/*")]
            states.append(digest(result.state))
        assert states[0] == states[1]


class TestClients:
    def test_unseen_clients_get_a_model(self, task, method):
        """From the offer and their own data alone, or a clear word that they do not."""
        with Play(task, method) as play:
            play.rounds()
            (unseen,) = task.data.unseen
            deployed = unless_refused(lambda: play.deployed(unseen))
            assert deployed is None or deployed.facts["n"] == 20
            assert not (play.engine.host.memory.folder / f"client-{unseen}.safetensors").exists()

    def test_offers_to_clients_that_the_server_never_met(self, task, method):
        with Play(task, method) as play:
            play.rounds()
            offer = unless_refused(lambda: method.offer(play.state, STRANGER)) or Record()
            assert all(v.dtype == np.float32 and np.isfinite(v).all() for v in offer.params.values())

    def test_offers_hold_models_and_figures_not_data(self, method):
        """The same number of floats and facts however much data the clients have."""
        shapes = []
        for samples in (20, 40):
            task = Task.load(**TINY | {"samples": samples})
            with Play(task, method) as play:
                offer = method.offer(play.rounds().state, 0)
            shapes.append(
                {name: np.size(value) for name, value in [*offer.facts.items(), *offer.params.items()]}
            )
        assert shapes[0] == shapes[1]


class TestMessages:
    def test_facts_are_flat_and_vectors_are_models(self, task, method):
        """An int, float, str, bool or None, or a list of these: what JSON and Flower can carry."""

        def plain(value):
            return type(value) in (int, float, str, bool, type(None))

        with Play(task, method) as play:
            play.rounds()
            offers = [method.offer(play.state, client) for client in task.data.clients]
            records = [r for ask, replies in play.said for r in (*ask.to.values(), *replies.values())]
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

    def test_what_a_round_reports_is_json(self, task, method):
        with Play(task, method) as play:
            play.rounds()
            for done in play.done:
                json.dumps(dict(done.facts), allow_nan=False)
                assert all(type(event) is str and "\n" not in event for event in done.events)
            json.dumps(dict(method.report(play.state)), allow_nan=False)
            reserved = {"round", "clients", "bytes_down", "bytes_up", "events", "evaluation", "void"}
            assert not reserved & {name for done in play.done for name in done.facts}

    def test_the_budget_of_trainings_is_kept(self, task, method):
        """At most `per_round` clients train in a round, and nobody is asked who is not there."""
        with Play(task, method) as play:
            play.rounds()
        trained = [len(ask.to) for ask, _ in play.said if ask.action == "train"]
        assert len(trained) == ROUNDS
        assert 0 < max(trained) <= 3
        assert {client for ask, _ in play.said for client in ask.to} <= {
            *task.data.clients, *play.setup.holdouts,
        }  # fmt: skip


class TestDescription:
    def test_name_and_summary(self, method):
        assert method_class(method.name) is type(method)
        assert METHODS[method.name] == type(method).__name__
        assert "\n" not in method.summary
        assert len(method.summary) > 10

    def test_every_hyper_parameter_has_a_default_and_a_description(self, method):
        fields = type(method).__pydantic_fields__
        assert set(fields) == {field.name for field in dataclasses.fields(method)}
        for name, field in fields.items():
            assert not field.is_required(), name
            assert field.description, name

    def test_frozen(self, method):
        for field in dataclasses.fields(method):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(method, field.name, None)

    def test_preferences_name_clusters_that_exist(self, task, method):
        with Play(task, method) as play:
            play.rounds()
        models, preferred = method.models(play.state), method.preferences(play.state)
        assert set(preferred) <= set(task.data.clients)
        assert {f"cluster_{k}" for k in preferred.values()} <= set(models)
