"""How a run is followed, with a stand-in for the SuperLink's answers; `test_faults` uses a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ipfl.deploy import operator
from ipfl.deploy.federation_folder import ServerFolder, create_folder
from ipfl.deploy.operator import RunFailedError, control_of, run_and_follow, synchronize_keys
from ipfl.deploy.registry import Registry
from ipfl.deploy.run_log import LineKind
from ipfl.errors import InputError


def said(text: str, kind: LineKind = LineKind.PROGRESS) -> str:
    return f"{kind}{text}"


class Answers:
    """What a SuperLink answers about one run, and what it was asked."""

    def __init__(self, *lines: str, status: str = "finished:completed", details: str = ""):
        self.lines, self.ended, self.asked = lines, (status, details), list[str]()
        self.registered: dict[int, bytes] = {}

    def start_run(self, bundle: bytes, settings: object) -> int:
        return 7

    def log_lines(self, run: int) -> Iterator[str]:
        for line in self.lines:
            if line == "gone":
                raise httpx.ReadError("gone")
            yield line

    def status(self, run: int) -> tuple[str, str]:
        return self.ended

    def stop_run(self, run: int) -> None:
        self.asked.append(f"stop {run}")

    def nodes(self) -> dict[int, bytes]:
        return self.registered

    def register(self, key: bytes, name: str) -> None:
        self.registered[len(self.registered)] = key

    def unregister(self, node: int) -> None:
        del self.registered[node]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ServerFolder:
    return create_folder(tmp_path_factory.mktemp("deploy") / "site", nodes=2)


@pytest.fixture
def follow(folder: ServerFolder, monkeypatch: pytest.MonkeyPatch):
    """Follows a run about which a SuperLink says this; returns what is shown, and what is raised."""

    def run(answers: Answers) -> tuple[list[str], Exception | None]:
        @contextmanager
        def stand_in(folder: ServerFolder) -> Iterator[Answers]:
            yield answers

        monkeypatch.setattr(operator, "control_of", stand_in)
        lines: list[str] = []
        try:
            run_and_follow(folder, {"nodes": 2}, lines.append)
        except Exception as error:
            return lines, error
        return lines, None

    return run


def test_only_the_lines_of_the_run_are_shown(follow) -> None:
    answers = Answers(
        "INFO :  Start", said("fedavg: 1 rounds"), "", "1 of 1 rounds", said("1 of 1 rounds: x")
    )
    assert follow(answers) == (["fedavg: 1 rounds", "1 of 1 rounds: x"], None)


@pytest.mark.parametrize(
    "kind, error", [(LineKind.INPUT_ERROR, InputError), (LineKind.FAILURE, RunFailedError)]
)
def test_what_a_run_says_of_its_end_is_raised_without_a_traceback(follow, kind, error) -> None:
    answers = Answers(
        said("waiting"), said("2 of 3 clients came", kind), "Traceback", status="finished:failed"
    )
    lines, raised = follow(answers)
    assert (lines, type(raised), str(raised)) == (["waiting"], error, "2 of 3 clients came")


def test_any_other_failure_is_shown_with_its_traceback(follow) -> None:
    lines, raised = follow(
        Answers(said("waiting"), "Traceback", "ZeroDivisionError: x", status="finished:failed", details="x")
    )
    assert lines == ["waiting", "Traceback", "ZeroDivisionError: x"]
    assert (type(raised), str(raised)) == (RunFailedError, "the run ended as finished:failed (x)")


def test_a_server_that_dies_ends_the_command(follow) -> None:
    lines, raised = follow(Answers(said("waiting"), "gone"))
    assert (lines, type(raised)) == (["waiting"], RunFailedError)
    assert "the server does not answer any more" in str(raised)


def test_ctrl_c_stops_the_run(follow, folder: ServerFolder) -> None:
    answers = Answers(said("1 of 2 rounds"))
    follow(answers)

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_and_follow(folder, {}, interrupt)
    assert answers.asked == ["stop 7"]


def test_keys_without_an_account_go_and_those_of_accounts_come(folder: ServerFolder, tmp_path: Path) -> None:
    answers, registry = Answers(), Registry.load(folder.accounts_file)
    stranger = create_folder(tmp_path / "other", nodes=1).node_folder(0).public_key.read_bytes()
    answers.registered = {5: stranger, 6: registry.accounts[0].key.encode()}
    synchronize_keys(answers, registry)  # type: ignore[arg-type]
    assert set(answers.registered.values()) == {account.key.encode() for account in registry.accounts}


def test_without_a_server_there_is_nothing_to_follow(folder: ServerFolder) -> None:
    with pytest.raises(InputError, match="no server runs in "), control_of(folder):
        pass
