"""Lines of a run: plain for people, encoded for `ipfl deploy run`, and found again between other lines."""

from __future__ import annotations

import pytest

from ipfl.deploy.run_log import (
    FORMAT_VARIABLE,
    JSON_FORMAT,
    PREFIX,
    EntryKind,
    LogEntry,
    print_input_error,
    print_progress,
)


@pytest.mark.parametrize("kind", list(EntryKind))
@pytest.mark.parametrize(
    "text",
    ["", "  round 1/3: 2 clients", "two\nlines\r\n", "υ → “größer” 🌸", 'error: "x" \\ \x1b[1m', PREFIX],
)
def test_an_entry_is_one_line_of_ascii_and_is_decoded_as_it_was(kind: EntryKind, text: str) -> None:
    line = LogEntry(kind, text).encode()
    assert line.isascii()
    assert line.splitlines() == [line]
    assert LogEntry.decode(line) == LogEntry(kind, text)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO :      Start `flwr-serverapp` process",
        "round 1/3: 2 clients",
        "error: too few nodes",
        f"INFO :      {LogEntry(EntryKind.PROGRESS, 'quoted').encode()}",
        PREFIX,
        PREFIX + "round 1/3",
        PREFIX + "[]",
        PREFIX + "{}",
        PREFIX + '{"kind": "other", "text": "x"}',
        PREFIX + '{"kind": "progress"}',
    ],
)
def test_other_lines_are_no_entries(line: str) -> None:
    assert LogEntry.decode(line) is None


def test_lines_are_plain_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FORMAT_VARIABLE, raising=False)
    print_progress("round 1/3")
    print_input_error("too few nodes")
    assert capsys.readouterr().out == "round 1/3\nerror: too few nodes\n"


def test_lines_are_encoded_for_the_command_that_reads_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, JSON_FORMAT)
    print_progress("round 1/3")
    print_input_error("too few nodes")
    entries = [LogEntry.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert entries == [
        LogEntry(EntryKind.PROGRESS, "round 1/3"),
        LogEntry(EntryKind.INPUT_ERROR, "too few nodes"),
    ]
