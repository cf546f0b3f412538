"""Runs for the console's tests: one worked out by hand, and a small comparison of real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.ledger.example_runs import LINE, worked_run
from tests.small_runs import run_small, small_task

from ipfl.console.app import make_app, open_console
from ipfl.console.console import Console
from ipfl.console.guard import RequestLimits
from ipfl.core import Event
from ipfl.keep.file_names import PLAN_FILE
from ipfl.system.files import write_json

MANY = RequestLimits(per_second=1e6, burst=1e6, sign_ins_per_minute=1e6)
"""So that tests are not slowed down; the limits have tests of their own."""
SCRIPT = "<script>alert(1)</script>"


def make_worked(folder: Path, rounds: int = 1, names: Mapping[str, str] | None = None) -> None:
    """The run by hand, begun for so many rounds, with an event and a method that try to be HTML."""
    line = {**LINE, "events": (Event("no_answer", 5, SCRIPT),)}
    worked_run(
        str(folder),
        folder.name,
        line,
        rounds=rounds,
        config={"task": {"dataset": SCRIPT}},
        client_names=names,
    )


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`worked`, `begun` (one of three rounds), `damaged`, and `both/METHOD/seed-0`."""
    folder = tmp_path_factory.mktemp("console") / "runs"
    folder.mkdir()
    make_worked(folder / "worked")
    make_worked(folder / "begun", rounds=3, names={"5": "Bern <b>"})
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.db").write_bytes(b"this is no database" * 100)
    # A comparison without its plots, which take longer than its runs.
    (folder / "both").mkdir()
    write_json(folder / "both" / PLAN_FILE, {"reference": "fedavg"})
    task, settings = small_task(), {"rounds": 3, "evaluate": {"every": 1}}
    reference = run_small(task, "fedavg", folder / "both/fedavg/seed-0", **settings)
    run_small(task, "ipfl-plus", folder / "both/ipfl-plus/seed-0", reference=reference, **settings)
    return folder


def open_for(
    folder: Path, *, auth: bool = False, host: str = "127.0.0.1", limits: RequestLimits = MANY
) -> Console:
    """A console of a folder, with its token in a file elsewhere."""
    token = folder.parent / "token"
    return open_console(folder, host, auth=auth, token_file=token, limits=limits)


__all__ = ["MANY", "SCRIPT", "make_app", "make_worked", "open_for", "runs_folder"]
