"""A run dies at any of its operations on files and store, again and again, and ends as if it had not.

`make test` kills each method a few times, 200 times and more in all. `make nightly` kills each at every
single operation, and then at random ones, 2,000 times and more (`IPFL_KILLS`).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from tests.play.killed_runs import run_contents
from tests.play.simulated_kills import AFTER_CONTENT, TASK, Kill, is_killed, play
from tests.small_nets import small_model
from tests.small_runs import copy_run, small_task

import ipfl
from ipfl.methods import METHODS

KILLS = int(os.environ.get("IPFL_KILLS", "12"))
"""Of each method."""


def test_there_are_enough_kills():
    assert len(METHODS) * KILLS >= 200


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3, **TASK)


class Chain:
    """Runs of one method that die and go on, each in a copy of what the one before has left."""

    def __init__(self, task, method: str, folder: Path):
        self.task, self.method, self.root = task, method, folder
        self.kills = self.attempts = 0
        with Kill(folder / "whole" / "run", folder / "unused") as counted:
            play(task, method, counted.folder)
        self.operations, self.expected = counted.kinds, run_contents(counted.folder)
        self.begin()

    def begin(self) -> None:
        """Begins with an empty folder."""
        self.folder = self._next()

    def _next(self) -> Path:
        self.attempts += 1
        return self.root / str(self.attempts) / "run"

    def die_at(self, operation: int, torn: bool) -> bool:
        """Plays until an operation; returns whether the run got that far. If not, it is compared."""
        image = self._next()
        is_dead = is_killed(self.task, self.method, Kill(self.folder, image, operation, torn))
        if not is_dead:
            assert run_contents(self.folder) == self.expected, (self.method, operation, torn)
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        self.folder = image
        self.kills += is_dead
        return is_dead

    def finish(self) -> None:
        """Goes on to the end, and compares."""
        play(self.task, self.method, self.folder)
        assert run_contents(self.folder) == self.expected, self.method
        shutil.rmtree(self.folder.parent)
        self.begin()


def die_at_every_operation(chain: Chain) -> None:
    """One kill in each run: at every operation of it, with whole and with half files."""
    for number, kind in enumerate(chain.operations, 1):
        for torn in (False, True) if kind in AFTER_CONTENT else (False,):
            assert chain.die_at(number, torn)
            chain.finish()


@pytest.fixture
def folder_in_memory(tmp_path):
    """Where waiting for the disk is free, if there is such a place: three quarters of the time otherwise.

    Kills lose nothing that was not synced in any case (`simulated_kills.py`), on a disk or here.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 2**28:
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory, prefix="ipfl-kills-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_bit_for_bit(method, folder_in_memory):
    task = small_task(seed=3, model=small_model(method), **TASK)
    chain, chance = Chain(task, method, folder_in_memory), random.Random(f"kills of {method}")
    if 2 * len(chain.operations) <= KILLS:
        die_at_every_operation(chain)
    furthest = len(chain.operations) // 2
    while chain.kills < KILLS:
        if not chain.die_at(chance.randint(1, furthest), chance.random() < 0.5):
            chain.begin()
    chain.finish()


def test_clients_models_that_the_folder_keeps(tmp_path):
    """Of data given in Python, clients' models are written at the end: a run dies at these operations."""
    points = np.arange(12, dtype=np.float32).reshape(6, 2)
    given = ipfl.Task.from_clients([(points + k, np.arange(6) % 2) for k in range(3)], model="softmax")
    whole = tmp_path / "whole" / "run"

    def kept(folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.glob("predictors/**/*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    with Kill(whole, tmp_path / "unused") as counted:
        play(given, "ditto", whole)
    numbers = [number for number, path in enumerate(counted.paths, 1) if "predictors" in path.parts]
    assert len(numbers) >= 12
    for number in numbers[::4]:
        folder, image = tmp_path / f"begun-{number}" / "run", tmp_path / f"dead-{number}" / "run"
        assert is_killed(given, "ditto", Kill(folder, image, number, torn=True))
        play(given, "ditto", image)
        assert run_contents(image) == run_contents(whole)
        assert kept(image) == kept(whole) != {}


def test_the_operations_are_all_that_a_run_does(task, tmp_path):
    """Or kills would miss some: what is counted covers every kind, the making of the store included."""
    with Kill(tmp_path / "run", tmp_path / "unused") as counted:
        play(task, "ipfl-plus", counted.folder)
    kinds = counted.kinds
    assert {"write", "written", "append", "appended", "rename", "sync", "remove", "folder"} <= {*kinds}
    before_the_first_round = kinds[: kinds.index("sync")]
    # The tables with the run, its opening balances.
    assert before_the_first_round.count("commit") == 2
    assert kinds.count("commit") == 2 + 3  # and a commit for each of three rounds


def test_killed_while_it_takes_the_place_of_an_earlier_run(task, tmp_path):
    """`--overwrite`, killed before the first round: no mixture of both is left once it is played again."""
    old, new = tmp_path / "old" / "run", tmp_path / "new" / "run"
    play(task, "ditto", old)
    with Kill(new, tmp_path / "unused") as counted:
        play(task, "ipfl-plus", new)
    expected = run_contents(new)
    for number in range(1, counted.kinds.index("sync"), 2):
        begun, image = tmp_path / f"begun-{number}" / "run", tmp_path / f"dead-{number}" / "run"
        copy_run(old, begun)
        assert is_killed(task, "ipfl-plus", Kill(begun, image, number), overwrite=True)
        play(task, "ipfl-plus", image, overwrite=True)
        assert run_contents(image) == expected, number
