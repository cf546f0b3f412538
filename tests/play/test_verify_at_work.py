"""Verification beside a run that is at work, on media that nothing can be written to, and of an old copy."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.play.simulated_kills import Kill, KilledError
from tests.small_runs import InterruptAfter, copy_run, finding, run_small, small_task

import ipfl
from ipfl.keep.run_audit import Audit
from ipfl.ledger.store import RunStore
from ipfl.system.folder_lock import FolderLock

CHECKS = int(os.environ.get("IPFL_CHECKS", "12"))
"""Of each method."""
DIED_AS_IT_ENDED = "summary.json is there, but no manifest.json: if the run died as it ended, resume it"
TRAIN = ipfl.TrainConfig(per_round=3, epochs=1)


@pytest.fixture(scope="module")
def task() -> ipfl.Task:
    return small_task(seed=3, clients=4, samples=8, test_samples=4)


def play(task: ipfl.Task, method: str, folder: Path, rounds: int, *, resume: bool = False) -> None:
    config = {"rounds": rounds, "seed": 3, "train": TRAIN, "evaluate": ipfl.EvaluateConfig(every=5)}
    run_small(task, method, folder, resume=resume, **config)


def play_and_go_on(task: ipfl.Task, method: str, folder: Path) -> None:
    """Runs that end and are made longer, again and again, each of them in a folder of its own."""
    for number in range(10**6):
        run = folder / f"{number}" / "run"
        for rounds in (8, 9, 30):
            play(task, method, run, rounds, resume=rounds > 8)


@contextmanager
def in_another_process(work: Callable[[], None]) -> Iterator[None]:
    """Does something in a process of its own, which is killed at the end."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it was to"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def newest_run(folder: Path) -> Path:
    """The run that is at work, once it has posted a round."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        begun = sorted(folder.glob("*/run/run.db"), key=lambda path: int(path.parts[-3]))
        if begun and begun[-1].with_name("metrics.jsonl").is_file():
            return begun[-1].parent
        time.sleep(0.01)
    raise TimeoutError


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ipfl-plus", "ditto"])
def test_nothing_is_found_beside_a_run_at_full_speed(task: ipfl.Task, method: str, tmp_path: Path) -> None:
    """The run changes between the looks at its ledger and at its files; none of that is tampering."""
    found, seen = [], set()
    with in_another_process(lambda: play_and_go_on(task, method, tmp_path)):
        while len(found) < CHECKS or len(seen) <= CHECKS / 4:
            assert len(found) < 100 * CHECKS, "the run stood still"
            folder = newest_run(tmp_path)
            store = RunStore.open(folder)
            seen.add((folder, store.last_round()))
            found.append(Audit(store, folder).finding())
    assert [str(one) for one in found if one is not None] == []


def test_files_are_compared_once_nobody_is_at_work(task: ipfl.Task, tmp_path: Path) -> None:
    """A process holds the folder, as a run at work does, and somebody else changes a file."""
    folder = tmp_path / "run"
    with pytest.raises(ipfl.Interrupted):
        run_small(task, "ipfl-plus", folder, observer=InterruptAfter(2), rounds=5, train=TRAIN)
    (folder / "checkpoint" / "round-2.safetensors").unlink()
    lock = FolderLock(folder)
    store = RunStore.open(folder)
    at_work = Audit(store, folder)
    assert at_work.finding() is None
    assert "the run goes on" in at_work.report()[-1]
    lock.release()
    found = Audit(store, folder).finding()
    assert found is not None
    assert found.what == "checkpoint/round-2.safetensors is missing, which round 2 wrote"


def test_a_run_that_died_while_it_was_made_longer(task: ipfl.Task, tmp_path: Path) -> None:
    """At any operation on its files: nothing is wrong with it, unless it died as it ended."""
    done = tmp_path / "done" / "run"
    play(task, "ditto", done, 2)
    with Kill(copy_run(done, tmp_path / "whole" / "run"), tmp_path / "unused") as counted:
        play(task, "ditto", counted.folder, 3, resume=True)
    found = []
    for number in range(1, len(counted.kinds) + 1, 7):
        folder = copy_run(done, tmp_path / f"begun-{number}" / "run")
        image = tmp_path / f"dead-{number}" / "run"
        with Kill(folder, image, number), suppress(KilledError):
            play(task, "ditto", folder, 3, resume=True)
        found.append(str(finding(image)))
    assert {*found} == {"None", DIED_AS_IT_ENDED}
    assert found == sorted(found, key=DIED_AS_IT_ENDED.__eq__)


COMMANDS = """
import json, sys
from typer.testing import CliRunner
from ipfl.cli import app
done = (CliRunner().invoke(app, words) for words in json.loads(sys.argv[1]))
print(json.dumps([[one.exit_code, one.output] for one in done]))
"""


def on_read_only_media(folder: Path, *commands: str) -> list[tuple[int, str]]:
    """Commands of ours where the folder is mounted so that nobody, root neither, can write to it.

    Returns:
        Exit code and output of each.
    """
    mounted = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    words = json.dumps([[*command.split(), str(folder / "run")] for command in commands])
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, "sh", str(folder), sys.executable, "-c", COMMANDS, words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [(code, output) for code, output in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_read_only_media(task: ipfl.Task, tmp_path: Path) -> None:
    """All that reads works, a change is found, and what writes is refused in one line."""
    play(task, "ipfl-plus", tmp_path / "run", 3)
    said = {
        "ledger verify": "run: 3 of 3 rounds verified",
        "ledger show": "Tokens of run",
        "ledger show --client 1": "opening balance",
        "ledger prove --client 1": '"account statement"',
        "ledger export": "reward",
        "show": "ipfl-plus",
    }
    refused = ("run --workers 0 -q --rounds 4 --resume", "run --workers 0 -q --overwrite --out")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = on_read_only_media(tmp_path, *said, *refused)
    for (code, output), expected in zip(done, said.values(), strict=False):
        assert (code, expected in output) == (0, True), output
    message = f"error: cannot write results to {tmp_path / 'run'}: Read-only file system\n"
    assert done[len(said) :] == [(2, message)] * 2
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "run/summary.json").write_text("{}")
    ((code, output),) = on_read_only_media(tmp_path, "ledger verify")
    assert (code, "summary.json" in output) == (1, True), output


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_log_of_a_killed_process_is_read_or_missed(
    task: ipfl.Task, tmp_path: Path, is_whole: bool
) -> None:
    """A round that is in the log only, not yet in the file, is not forgotten in silence."""
    place, at_work = tmp_path / "media", tmp_path / "work" / "run"
    with pytest.raises(ipfl.Interrupted):
        run_small(task, "ipfl-plus", at_work, observer=InterruptAfter(1), rounds=5, train=TRAIN)
    reader = sqlite3.connect(at_work / "run.db", isolation_level=None)  # keeps the log from being settled
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM run").fetchall()
    with pytest.raises(ipfl.Interrupted):
        run_small(task, "ipfl-plus", at_work, resume=True, observer=InterruptAfter(3), rounds=5, train=TRAIN)
    copy_run(at_work, place / "run")
    reader.close()
    assert (place / "run" / "run.db-wal").stat().st_size > 0
    if not is_whole:
        (place / "run" / "run.db-shm").unlink()
    ((code, output),) = on_read_only_media(place, "ledger verify")
    if is_whole:
        assert (code, "4 of 5 rounds verified" in output) == (0, True), output
    else:
        assert (code, len(output.splitlines())) == (2, 1)
        assert "copy the folder, with all files" in output
