"""What disks do below the operations on files: they forget, write less or elsewhere, and fail to sync."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from tests.play.killed_runs import run_contents
from tests.play.simulated_kills import TASK, Kill, PowerFailure, is_killed, play
from tests.small_runs import InterruptAfter, run_small, small_task

import ipfl
from ipfl.errors import InputError
from ipfl.keep.manifest import covered_files
from ipfl.system import files

FAILURES = int(os.environ.get("IPFL_POWER_FAILURES", "8"))
"""Of each method."""


@pytest.fixture(scope="module")
def task() -> ipfl.Task:
    return small_task(seed=3, **TASK)


@pytest.mark.parametrize("method", ["ipfl-plus", "ditto", "fedamp"])
def test_a_power_failure_loses_no_committed_round(task: ipfl.Task, method: str, tmp_path: Path) -> None:
    """At any operation: what the store has committed is on disk, so the run goes on to the same end."""
    whole = tmp_path / "whole" / "run"
    with Kill(whole, tmp_path / "unused") as counted:
        play(task, method, whole)
    chance, lost = random.Random(f"power failures of {method}"), Counter[str]()
    for number in sorted(chance.sample(range(1, len(counted.kinds) + 1), FAILURES)):
        folder, image = tmp_path / f"begun-{number}" / "run", tmp_path / f"dead-{number}" / "run"
        failure = PowerFailure(folder, image, number, chance)
        assert is_killed(task, method, failure)
        lost.update(path.split("/")[0] for path in failure.lost)
        play(task, method, image)
        assert run_contents(image) == run_contents(whole), (number, failure.lost)
        shutil.rmtree(image.parent)
        shutil.rmtree(folder.parent)
    assert lost.total() > FAILURES / 2, "or nothing was lost and nothing is tested"


@pytest.fixture(scope="module")
def stopped(task: ipfl.Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which two rounds of three are done."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(ipfl.Interrupted):
        run_small(task, "ditto", folder, observer=InterruptAfter(1), rounds=3, seed=3)
    return folder


def test_a_misdirected_write_is_found_by_name_and_not_gone_on_from(
    task: ipfl.Task, stopped: Path, tmp_path: Path
) -> None:
    """A sector of each file lands in the next one."""
    paths = [path for path in covered_files(stopped) if path.startswith(("checkpoint", "memory"))]
    assert {path.split("/")[0] for path in paths} == {"checkpoint", "memory"}
    for number, (source, target) in enumerate(zip(paths, [*paths[1:], paths[0]], strict=True)):
        folder = tmp_path / str(number) / "run"
        shutil.copytree(stopped, folder)
        shutil.copy(stopped.parent / "signing.key", folder.parent)
        with (folder / target).open("r+b") as file:
            file.seek(512)
            file.write((folder / source).read_bytes()[-512:])
        with pytest.raises(InputError, match=f"{target} is not the file that round"):
            run_small(task, "ditto", folder, resume=True, rounds=3, seed=3)


class ShortWrites(FileIO):
    """A file that takes seven bytes at a time, as a disk or a network file system may."""

    def write(self, content: Any, /) -> int:
        return super().write(memoryview(content)[:7])


def test_short_writes_go_on_where_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda path, mode, buffering=0: ShortWrites(path, mode))
    files.append(tmp_path / "short.jsonl", b"first line\n")
    files.append(tmp_path / "short.jsonl", b"second line\n")
    assert (tmp_path / "short.jsonl").read_bytes() == b"first line\nsecond line\n"


class FailingSync:
    """`os.fsync` that fails once; of the file that it was for, zeros are left."""

    def __init__(self, at: int):
        self.at, self.calls, self.real = at, 0, os.fsync

    def __call__(self, handle: int) -> None:
        self.calls += 1
        if self.calls != self.at:
            self.real(handle)
            return
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("method", ["ditto"])
def test_a_failing_sync_ends_the_run_and_costs_no_committed_round(
    task: ipfl.Task, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole" / "run"
    counted = FailingSync(0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", counted)
        play(task, method, whole)
    assert counted.calls >= 3 * 4  # checkpoint, its name and folder, in every round; and the results
    for number in range(2, counted.calls + 1, 3):  # the first one is that of the key
        folder = tmp_path / str(number) / "run"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", FailingSync(number))
            with pytest.raises(OSError, match="Input/output error") as caught:
                play(task, method, folder)
        assert str(folder) in str(caught.value.filename)
        play(task, method, folder)
        assert run_contents(folder) == run_contents(whole), number
