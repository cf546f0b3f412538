"""A run that is killed and resumed ends exactly as one that was left alone: files, models, ledger.

Every killed run is a forked process that dies by SIGKILL, either at a chosen place in the code or after a
random time. Nothing is cleaned up for it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

import ipfl
from ipfl.client import memory
from ipfl.errors import InputError
from ipfl.ledger import RunStore, verify
from ipfl.ledger import store as runs
from ipfl.runs import checkpoint, journal
from ipfl.runs.folder import RunFolder

ROUNDS = 6
SETTINGS = {"rounds": ROUNDS, "seed": 3, "train": ipfl.TrainConfig(per_round=4)}


@pytest.fixture(scope="module")
def task():
    return ipfl.Task.load(clients=6, samples=20, test_samples=20, model="softmax", seed=3)


def go(task, method, out, **options):
    return ipfl.run(task, ipfl.method(method), out=out, **({"workers": 0} | SETTINGS | options))


def contents(folder):
    """All that must be equal, byte for byte where it is a file."""
    files = [folder / "metrics.jsonl", folder / "offer.safetensors", *sorted((folder / "model").iterdir())]
    summary = json.loads((folder / "summary.json").read_text())
    for measured in ("seconds", "commit"):
        summary.pop(measured)
    with RunStore.open(folder) as store:
        assert verify(store) is None
        ledger = (store.head(), list(store.lines()), store.balances())
    # What each client remembers now; how many older versions lie about is nobody's business.
    versions = sorted((folder / "memory").glob("*/*.safetensors"), key=lambda path: int(path.stem))
    remembered = {path.parent.name: path.read_bytes() for path in versions}
    return {path.name: path.read_bytes() for path in files}, summary, ledger, remembered


@pytest.fixture(scope="module", params=["ipfl", "local", "fedavg"])
def method(request):
    return request.param


@pytest.fixture(scope="module")
def untouched(task, method, tmp_path_factory):
    """What the run comes to if nobody interferes. The folder's name is part of the ledger's hash chain."""
    folder = tmp_path_factory.mktemp("untouched") / "run"
    go(task, method, folder)
    return contents(folder)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def again(out) -> dict[str, bool]:
    """How to start: go on with what is there, or anew if the process died before it entered its run."""
    try:
        RunStore.open(out).close()
    except InputError:
        return {"overwrite": True}
    return {"resume": True}


def in_a_process_that_dies(task, method, out, prepare=lambda: None, seconds=None, **options) -> bool:
    """Runs or resumes in a forked process; returns whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            prepare()
            go(task, method, out, **again(out), **options)
        finally:
            os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def after_calls(where, name, calls, *, before_the_last=True, half=False):
    """Makes the process die at the n-th call of a function: before it, after it, or half-way."""
    original, count = getattr(where, name), 0

    def counted(*args, **keywords):
        nonlocal count
        count += 1
        if count == calls:
            if half:
                args[0].with_suffix(".draft").write_bytes(b"\x10\x00\x00\x00half a fil")
                die()
            if not before_the_last:
                original(*args, **keywords)
            die()
        return original(*args, **keywords)

    setattr(where, name, counted)


PLACES = {
    "in the middle of writing a checkpoint": lambda n: after_calls(checkpoint, "write_record", n, half=True),
    "before a checkpoint": lambda n: after_calls(checkpoint.Checkpoints, "write", n),
    "between checkpoint and commit": lambda n: after_calls(
        checkpoint.Checkpoints, "write", n, before_the_last=False
    ),
    "inside the transaction": lambda n: after_calls(runs, "insert_rows", 2 + 3 * n),
    "after the commit": lambda n: after_calls(RunStore, "commit_round", n, before_the_last=False),
    "before the line is written": lambda n: after_calls(RunFolder, "add_round", n),
    "while old checkpoints are removed": lambda n: after_calls(checkpoint.Checkpoints, "keep_only", n),
    "in the middle of a client's memory": lambda n: after_calls(memory, "write_record", 3 * n, half=True),
}


@pytest.mark.parametrize("place", PLACES)
def test_killed_at_a_place(task, method, untouched, tmp_path, place):
    """One kill in the second call of the place, one more in the first after resuming."""
    out = tmp_path / "run"
    kills = [in_a_process_that_dies(task, method, out, lambda n=n: PLACES[place](n)) for n in (2, 1)]
    if not (place == "in the middle of a client's memory" and method == "fedavg"):  # it remembers nothing
        assert all(kills)
    go(task, method, out, **again(out))
    assert contents(out) == untouched


def test_killed_before_the_accounts_were_opened(task, method, untouched, tmp_path):
    out = tmp_path / "run"
    entered = lambda: after_calls(RunStore, "create", 1, before_the_last=False)  # noqa: E731
    assert in_a_process_that_dies(task, method, out, entered)
    assert again(out) == {"resume": True}
    go(task, method, out, resume=True)
    assert contents(out) == untouched


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_random_moments(task, tmp_path, workers):
    """At least 25 kills over a run of 40 rounds, resumed each time, with and without worker processes."""
    options = {"rounds": 40, "workers": workers}
    begun = time.perf_counter()
    go(task, "ipfl", tmp_path / "whole" / "run", **options)
    whole = time.perf_counter() - begun
    out, kills, chance = tmp_path / "run", 0, random.Random(workers)
    while kills < 25:
        kills += in_a_process_that_dies(task, "ipfl", out, seconds=chance.uniform(0.02, whole / 8), **options)
        if (out / "summary.json").exists():  # finished before enough kills: tear its end off again
            (out / "summary.json").unlink()
    go(task, "ipfl", out, **again(out), **options)
    assert contents(out) == contents(tmp_path / "whole" / "run")


def test_ctrl_c_in_the_middle_of_a_commit_waits_for_its_end(task, untouched, method, tmp_path, monkeypatch):
    """The third commit is interrupted: the round counts, the run ends, and --resume finishes it."""
    out, commit, calls = tmp_path / "run", RunStore.commit_round, 0

    def interrupted(self, *args):
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGINT)
        commit(self, *args)

    monkeypatch.setattr(RunStore, "commit_round", interrupted)
    result = go(task, method, out)
    assert result.summary["interrupted"]
    assert len(result.history) == len((out / "metrics.jsonl").read_text().splitlines()) == 3
    with RunStore.open(out) as store:
        assert store.last_round() == 2
    monkeypatch.undo()
    go(task, method, out, resume=True)
    assert contents(out) == untouched


def test_checkpoints_every_third_round(task, untouched, method, tmp_path):
    out = tmp_path / "run"
    place = lambda: after_calls(RunStore, "commit_round", 5, before_the_last=False)  # noqa: E731
    assert in_a_process_that_dies(task, method, out, place, checkpoint_every=3)
    with RunStore.open(out) as store:
        assert store.last_round() == 4
    assert [path.name for path in (out / "checkpoint").iterdir()] == ["round-2.safetensors"]
    go(task, method, out, resume=True, checkpoint_every=3)
    models = {name: content for name, content in contents(out)[0].items() if name.endswith(".safetensors")}
    assert models == {name: c for name, c in untouched[0].items() if name.endswith(".safetensors")}
    assert contents(out)[0]["metrics.jsonl"] == untouched[0]["metrics.jsonl"]


def test_resuming_a_finished_run_changes_nothing(task, untouched, method, tmp_path):
    out = tmp_path / "run"
    go(task, method, out)
    go(task, method, out, resume=True)
    assert contents(out) == untouched


class TestRefused:
    def test_nothing_to_resume(self, task, tmp_path):
        with pytest.raises(InputError, match="no run store"):
            go(task, "fedavg", tmp_path / "nothing", resume=True)
        with pytest.raises(InputError, match="there is no run to resume"):
            journal.read_header(tmp_path / "nothing")

    def test_without_a_folder(self, task):
        with pytest.raises(InputError, match="needs a folder"):
            go(task, "fedavg", None, resume=True)

    def test_another_method(self, task, tmp_path):
        go(task, "fedavg", tmp_path / "run")
        with pytest.raises(InputError, match="was begun with method fedavg, not ipfl"):
            go(task, "ipfl", tmp_path / "run", resume=True)
        with pytest.raises(InputError, match="was begun with seed 3, not 4"):
            go(task, "fedavg", tmp_path / "run", resume=True, seed=4)

    @pytest.mark.parametrize("damage", [b"", b"\x00" * 50])
    def test_damaged_checkpoint(self, task, tmp_path, damage):
        go(task, "fedavg", tmp_path / "run")
        (file,) = (tmp_path / "run" / "checkpoint").iterdir()
        file.write_bytes(damage)
        with pytest.raises(InputError, match="cannot be read"):
            go(task, "fedavg", tmp_path / "run", resume=True)
