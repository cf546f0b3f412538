"""A folder of results may come from somebody else: a pipe in place of a file is refused, not waited for."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import finding, run_small, small_task

import ipfl
from ipfl.errors import InputError
from ipfl.results.finished import load_figures
from ipfl.results.overview import find_runs
from ipfl.study.comparison import read_plan

SECONDS = 20
"""After which a test fails that waits for a pipe."""


@pytest.fixture(scope="module")
def task() -> ipfl.Task:
    return small_task()


@pytest.fixture(scope="module")
def done(task: ipfl.Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_small(task, "ipfl-plus", folder / "mine", rounds=1)
    return folder


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def with_pipe(done: Path, tmp_path: Path, name: str) -> Path:
    """A copy of the run with a pipe in the place of a file."""
    shutil.copytree(done, tmp_path / "runs")
    (tmp_path / "runs" / "mine" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "runs" / "mine" / name)
    return tmp_path / "runs" / "mine"


@pytest.mark.parametrize(
    "name", ["summary.json", "metrics.jsonl", "offer.safetensors", "checkpoint/round-0.safetensors"]
)
def test_verify_finds_it(done: Path, tmp_path: Path, name: str) -> None:
    assert finding(with_pipe(done, tmp_path, name)).startswith(f"{name} ")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("summary.json", load_figures),
        ("metrics.jsonl", load_figures),
        ("offer.safetensors", lambda folder: ipfl.load(folder).predict(0, [[0.0] * 64])),
        ("plan.json", read_plan),
    ],
)
def test_who_reads_a_run_refuses_it(
    done: Path, tmp_path: Path, name: str, read: Callable[[Path], Any]
) -> None:
    with pytest.raises(InputError, match=f"{name} is not a file"):
        read(with_pipe(done, tmp_path, name))


def test_a_list_says_that_the_run_is_damaged(done: Path, tmp_path: Path) -> None:
    folder = with_pipe(done, tmp_path, "summary.json")
    assert [entry.state for entry in find_runs(folder.parent)] == ["damaged"]


def test_a_run_is_not_resumed_from_it(task: ipfl.Task, done: Path, tmp_path: Path) -> None:
    folder = with_pipe(done, tmp_path, "checkpoint/round-0.safetensors")
    with pytest.raises(InputError, match=r"round-0\.safetensors is missing, which round 0 wrote"):
        run_small(task, "ipfl-plus", folder, rounds=2, resume=True)


def test_a_pipe_of_its_owner_does_not_stop_a_run(task: ipfl.Task, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine")
    run_small(task, "ipfl-plus", tmp_path, rounds=1)
    assert finding(tmp_path) is None
