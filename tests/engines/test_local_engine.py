"""The local engine: the same results for any number of workers, whatever happens to them."""

from __future__ import annotations

import multiprocessing as mp
import os
import select
import signal
import tempfile
import time
from contextlib import suppress

import numpy as np
import pytest
from tests.small_runs import ask_anything, run_small, small_engine, small_task
from torch import nn

from ipfl.client.runner import ClientFailedError
from ipfl.core import EMPTY, Ask, Method, Record, Round
from ipfl.core.replies import ReplyLimits, ReplySchema, Whole
from ipfl.engines import mailbox
from ipfl.engines.worker_process import Assignment
from ipfl.errors import InputError
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.training.task import Task

HERE = os.getpid()


@pytest.fixture(scope="module")
def task():
    return small_task()


def everyone(record=EMPTY, clients=range(6)):
    return dict.fromkeys(clients, record)


NOTHING = ReplyLimits(2, 0, 0)


class Probe(Method):
    """Client code that does what a test wants of it."""

    name = "probe"
    summary = "for tests of the engine"

    def init(self, setup):
        return setup.params

    def round(self, state, roster, round):
        yield Ask("die", everyone(clients=roster.clients), ReplySchema({"id": Whole}))
        return Round(state)

    def offer(self, state, client):
        return Record({"global": state})

    def personalize(self, offer, mine, me):
        return offer.params["global"]

    def on_echo(self, ask, mine, me):
        return Record(ask.params, {"id": me.id, **ask.facts}), mine

    def on_count(self, ask, mine, me):
        count = mine.facts.get("count", 0) + 1
        seen = mine.params.get("seen", np.empty(0, np.float32))
        seen = np.append(seen, np.float32(me.round))
        return Record({"seen": seen}, {"count": count}), Record({"seen": seen}, {"count": count})

    def on_die(self, ask, mine, me):
        if me.id == 2 and me.round == 0 and os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.on_echo(ask, mine, me)

    def on_fail(self, ask, mine, me):
        if me.id == 2:
            raise RuntimeError("no luck today")
        return Record({}, {"phase": "fail"}), mine

    def on_sleep(self, ask, mine, me):
        time.sleep(ask.facts["seconds"])
        return EMPTY, mine

    def on_refuse(self, ask, mine, me):
        raise InputError("put this right")

    def on_scribble(self, ask, mine, me):
        ask.params["model"][:] = 7
        return EMPTY, mine


def dropped_out(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, classes))


class TestWorkers:
    def test_nor_do_the_draws_of_a_module(self):
        """Dropout draws from torch's own stream, of which every process has another."""
        rng = np.random.default_rng(0)
        clients = [(rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 2, 12)) for _ in range(4)]
        task = Task.from_clients(clients, model=dropped_out)
        start = Record({"global": task.network(0).read()})
        found = []
        for workers in (0, 1, 3):
            with small_engine(task, FedAvg(), workers=workers) as engine:
                replies = engine.ask(ask_anything("train", everyone(start, range(4))), 0)
            found.append({client: reply.params["global"].tobytes() for client, reply in replies.items()})
        assert found[0] == found[1] == found[2]
        assert len(set(found[0].values())) == 4

    @pytest.mark.parametrize("workers", [0, 1, 3])
    def test_replies_come_in_ascending_id(self, task, workers):
        model = np.arange(5, dtype=np.float32)
        to = {client: Record({"m": model + client}, {"said": [client]}) for client in (5, 0, 3, 1)}
        with small_engine(task, Probe(), workers=workers) as engine:
            replies = engine.ask(ask_anything("echo", to), 0)
            engine.ask(ask_anything("echo", everyone(Record({"m": model * 0}))), 1)
        assert list(replies) == [0, 1, 3, 5]
        for client, reply in replies.items():
            assert reply.params["m"].tolist() == (model + client).tolist(), "nor overwritten by a later phase"
            assert reply.facts == {"id": client, "said": [client]}

    @pytest.mark.parametrize("workers, kind", [(0, ValueError), (1, ClientFailedError)])
    def test_clients_cannot_write_into_the_server_s_model(self, task, workers, kind):
        model = np.zeros(3, np.float32)
        with small_engine(task, Probe(), workers=workers) as engine, pytest.raises(kind, match="read-only"):
            engine.ask(ask_anything("scribble", {0: Record({"model": model})}), 0)
        assert model.tolist() == [0, 0, 0]
        assert model.flags.writeable


class TestTrouble:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_worker_killed_at_work(self, task, workers):
        record = Record({"m": np.ones(3, np.float32)})
        with small_engine(task, Probe(), workers=workers) as engine:
            replies = engine.ask(ask_anything("die", everyone(record)), 0)
            assert list(replies) == [0, 1, 3, 4, 5]
            assert [(event.kind, event.client) for event in engine.events] == [("worker_died", 2)]
            again = engine.ask(ask_anything("die", everyone(record)), 1)
            assert list(again) == [0, 1, 2, 3, 4, 5]
            assert len(mp.active_children()) == workers
        assert len(engine.events) == 1

    def test_a_worker_killed_while_idle(self, task):
        with small_engine(task, Probe(), workers=2) as engine:
            victim = engine._workers[0].process
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            replies = engine.ask(ask_anything("echo", everyone()), 0)
            assert list(replies) == [1, 2, 3, 4, 5], "client 0 was given to the dead worker"
            assert len(engine.events) == 1
            assert len(engine.ask(ask_anything("echo", everyone()), 1)) == 6

    def test_a_client_that_raises(self, task):
        with small_engine(task, Probe(), workers=2) as engine:
            with pytest.raises(ClientFailedError) as error:
                engine.ask(ask_anything("fail", everyone()), 0)
            told = str(error.value)
            assert told.startswith("client 2 failed:\nTraceback (most recent call last)")
            assert "on_fail" in told
            assert "RuntimeError: no luck today" in told
            # What others answered meanwhile must not be taken for answers to the next ask.
            replies = engine.ask(ask_anything("echo", everyone(Record({}, {"phase": "echo"}))), 0)
            assert [reply.facts["id"] for reply in replies.values()] == [0, 1, 2, 3, 4, 5]
            assert {reply.facts["phase"] for reply in replies.values()} == {"echo"}

    @pytest.mark.parametrize(
        ("workers", "action", "kind", "text"),
        [(0, "fail", RuntimeError, "^no luck"), *((n, "refuse", InputError, "^put this") for n in (0, 1))],
    )
    def test_other_errors_stay_what_they_are(self, task, workers, action, kind, text):
        """In this process all that a client raises; in a worker what the user can put right."""
        with small_engine(task, Probe(), workers=workers) as engine, pytest.raises(kind, match=text):
            engine.ask(ask_anything(action, everyone()), 0)


class TestMemory:
    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_kept_between_rounds_for_each_client_alone(self, task, workers):
        with small_engine(task, Probe(), workers=workers) as engine:
            engine.ask(ask_anything("count", everyone(clients=[0, 1])), 3)
            engine.ask(ask_anything("count", everyone(clients=[1, 2])), 5)
            replies = engine.ask(ask_anything("count", everyone(clients=[0, 1, 2, 3])), 9)
        assert [reply.facts["count"] for reply in replies.values()] == [2, 3, 2, 1]
        assert [reply.params["seen"].tolist() for reply in replies.values()] == [
            [3, 9],
            [3, 5, 9],
            [5, 9],
            [9],
        ]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_folder_of_its_own_goes_away(self, task, workers, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with small_engine(task, Probe(), workers=workers) as engine:
            engine.ask(ask_anything("count", everyone()), 0)
            assert len(list(tmp_path.glob("ipfl-memory-*/*"))) == 6
        assert list(tmp_path.iterdir()) == []

    def test_an_engine_that_cannot_be_made_leaves_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        task = Task.from_clients([(np.ones((4, 2), np.float32), [0, 1, 0, 1])], model="cnn")
        with pytest.raises(InputError, match="use 'mlp' or 'softmax'"):
            small_engine(task, FedAvg(), workers=1)
        assert list(tmp_path.iterdir()) == []
        assert mp.active_children() == []


class Malformed(Probe):
    """Clients whose replies are no records, each another one; the last one is honest."""

    name = "malformed"
    summary = "for tests of the boundary"
    replies = (
        5,
        Record({"m": [1.0]}),
        Record({"m": np.zeros((2, 2), np.float32)}),
        Record({"m": np.zeros(10**6, np.float32)}),
        Record({}, {"n": {1, 2}}),
        Record({}, {"n": 3}),
    )

    def round(self, state, roster, round):
        yield Ask("do", everyone(clients=roster.clients), ReplySchema({"n": Whole}))
        return Round(state)

    def on_do(self, ask, mine, me):
        return self.replies[me.id], mine


def test_malformed_replies_are_the_same_events_for_any_number_of_workers(task):
    lines = [run_small(task, Malformed(), workers=workers, rounds=1).history[0] for workers in (0, 2)]
    assert lines[0] == lines[1]
    events = [(event.kind, event.client) for event in lines[0]["events"]]
    assert events == [("invalid_reply", client) for client in range(5)]


class TestLeaks:
    @staticmethod
    def open_files() -> int:
        return len(os.listdir("/dev/fd"))

    def test_neither_processes_nor_files_are_left(self, task):
        model = Record({"m": np.ones(1000, np.float32)})
        with small_engine(task, Probe(), workers=1) as engine:  # whatever is opened once and for all
            engine.ask(ask_anything("die", everyone(model)), 0)
        before = self.open_files()
        for _ in range(3):
            with small_engine(task, Probe(), workers=3) as engine:
                engine.ask(ask_anything("die", everyone(model)), 0)  # one worker is replaced
                engine.ask(ask_anything("echo", everyone(model)), 1)
                assert len(mp.active_children()) == 3
            assert mp.active_children() == []
            assert self.open_files() == before

    def test_a_worker_at_work_is_not_waited_for_and_says_nothing(self, task, capfd):
        """After Ctrl-C the engine is closed in the middle of a phase."""
        with small_engine(task, Probe(), workers=2) as engine:
            for worker, seconds in zip(engine._workers, (0.05, 60), strict=True):
                worker.pipe.send(Assignment(1, 0, "sleep", 0, False, -1, {}, {"seconds": seconds}, NOTHING))
        assert mp.active_children() == []
        assert capfd.readouterr().err == ""

    def test_workers_do_not_outlive_a_parent_that_is_killed(self, task):
        read, write = os.pipe()
        if (parent := os.fork()) == 0:
            os.setpgid(0, 0)
            try:
                with small_engine(task, Probe(), workers=2):
                    os.write(write, b"!")
                    time.sleep(60)
            finally:
                os._exit(0)
        os.close(write)
        try:
            assert os.read(read, 1) == b"!"
            os.kill(parent, signal.SIGKILL)
            os.waitpid(parent, 0)
            # The workers hold the other end of this pipe as well: it ends when the last of them does.
            ready, _, _ = select.select([read], [], [], 20)
            assert ready, "the workers were still there"
            assert os.read(read, 1) == b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent, signal.SIGKILL)
            os.close(read)


class TestSize:
    def test_vectors_held_do_not_grow_with_the_clients(self, task, monkeypatch):
        """Every client is sent, and sends, a vector of its own; the boxes hold MAX_HELD_BYTES at most."""
        keep, length = 4000, 300  # 1200 bytes each: three fit
        monkeypatch.setattr(mailbox, "MAX_HELD_BYTES", keep)
        to = {c: Record({"m": np.full(length, c, np.float32)}) for c in range(6)}
        with small_engine(task, Probe(), workers=1) as engine:
            (worker,) = engine._workers
            for round in range(3):
                replies = engine.ask(ask_anything("echo", to), round)
                assert [reply.params["m"][-1] for reply in replies.values()] == list(range(6))
                assert worker.inbox._end * 4 <= keep
                assert os.fstat(worker.inbox._file).st_size <= keep
                # The reply of one client at a time.
                assert os.fstat(worker.outbox._file).st_size == length * 4

    def test_a_shared_model_is_sent_once_per_worker(self, task):
        record = Record({"m": np.ones(300, np.float32)})
        with small_engine(task, Probe(), workers=2) as engine:
            engine.ask(ask_anything("echo", {c: Record(record.params, {"c": c}) for c in range(6)}), 0)
            assert {worker.inbox._end for worker in engine._workers} == {300}
