"""How a run is followed, with a small program in place of `flwr`; `test_faults` uses the real one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ipfl.deploy import flower_cli
from ipfl.deploy.federation_folder import ServerFolder
from ipfl.deploy.flower_cli import RunFailedError, flower_environment, run_and_follow
from ipfl.deploy.run_log import EntryKind, LogEntry
from ipfl.errors import InputError

FLWR = """\
#!{python}
import json, sys
from pathlib import Path
here = Path(__file__).parent
with (here / "calls").open("a") as calls:
    print(*sys.argv[1:3], file=calls)
if sys.argv[1] == "log":
    print((here / "log").read_text(), end="")
else:
    print((here / sys.argv[1]).read_text())
"""
"""Notes how it was called, and prints the file with the name of the subcommand."""


def progress(text: str) -> str:
    return LogEntry(EntryKind.PROGRESS, text).encode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFolder:
    """A folder whose `flwr` starts a run with id 7."""
    flwr = tmp_path / "flwr-program"
    flwr.write_text(FLWR.format(python=sys.executable))
    flwr.chmod(0o755)
    monkeypatch.setattr(flower_cli, "command_path", lambda name: str(flwr))
    folder = ServerFolder(tmp_path)
    folder.flower_home.mkdir()
    for name, answer in (("run", {"success": True, "run-id": 7}), ("stop", {"success": True})):
        (tmp_path / name).write_text(json.dumps(answer))
    set_status(tmp_path, "finished:completed")
    return folder


def set_status(place: Path, status: str, details: str = "") -> None:
    runs = [{"status": status, "status-details": details}]
    (place / "list").write_text(json.dumps({"success": True, "runs": runs}))


def set_log(place: Path, *lines: str) -> None:
    (place / "log").write_text("".join(line + "\n" for line in lines))


def test_only_the_lines_of_the_run_are_shown(folder: ServerFolder) -> None:
    set_log(
        folder.root,
        "INFO :  Start",
        progress("fedavg: 1 rounds"),
        "",
        "1 of 1 rounds",
        progress("1 of 1 rounds: x"),
    )
    lines: list[str] = []
    run_and_follow(folder, {"nodes": 2}, lines.append)
    assert lines == ["fedavg: 1 rounds", "1 of 1 rounds: x"]


def test_an_input_error_is_raised_without_its_traceback(folder: ServerFolder) -> None:
    error = LogEntry(EntryKind.INPUT_ERROR, "2 of 3 clients came").encode()
    set_log(folder.root, progress("waiting"), error, "Traceback (most recent call last):", "InputError: x")
    set_status(folder.root, "finished:failed")
    lines: list[str] = []
    with pytest.raises(InputError, match=r"^2 of 3 clients came$"):
        run_and_follow(folder, {}, lines.append)
    assert lines == ["waiting"]


def test_any_other_failure_is_shown_with_its_traceback(folder: ServerFolder) -> None:
    set_log(folder.root, progress("waiting"), "Traceback (most recent call last):", "ZeroDivisionError: x")
    set_status(folder.root, "finished:failed", "ServerApp failed with exception: x")
    lines: list[str] = []
    with pytest.raises(RunFailedError, match=r"finished:failed \(ServerApp failed with exception: x\)"):
        run_and_follow(folder, {}, lines.append)
    assert lines == ["waiting", "Traceback (most recent call last):", "ZeroDivisionError: x"]


def test_a_run_in_which_no_round_counted_has_failed(folder: ServerFolder) -> None:
    failure = LogEntry(EntryKind.FAILURE, "no round counted").encode()
    set_log(folder.root, progress("1 of 1 rounds: x"), "INFO :  Stop", failure)
    lines: list[str] = []
    with pytest.raises(RunFailedError, match=r"^no round counted$"):
        run_and_follow(folder, {}, lines.append)
    assert lines == ["1 of 1 rounds: x"]


def test_ctrl_c_stops_the_run(folder: ServerFolder) -> None:
    set_log(folder.root, progress("1 of 2 rounds"))

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_follow(folder, {}, interrupt)
    assert (folder.root / "calls").read_text().splitlines()[-1] == "stop 7"


def test_a_run_that_does_not_start(folder: ServerFolder) -> None:
    (folder.root / "run").write_text(json.dumps({"success": False, "error-message": "no app"}))
    with pytest.raises(RunFailedError, match="Flower did not start the run: no app"):
        run_and_follow(folder, {}, print)
    (folder.root / "run").write_text("no JSON")
    with pytest.raises(RuntimeError, match=r"flwr run .* failed: no JSON"):
        run_and_follow(folder, {}, print)


def test_a_refused_token_is_an_input_error(folder: ServerFolder) -> None:
    refusal = {"success": False, "error-message": "Authentication failed. Please run `flwr login` to …"}
    (folder.root / "run").write_text(json.dumps(refusal))
    with pytest.raises(InputError, match="the server does not accept the operator token in "):
        run_and_follow(folder, {}, print)


def test_flower_runs_without_telemetry_and_updates(tmp_path: Path) -> None:
    env = flower_environment(tmp_path)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
