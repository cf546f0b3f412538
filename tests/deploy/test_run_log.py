"""Lines of a run: found again between all others in the log of its ServerApp."""

from __future__ import annotations

import pytest

from ipfl.deploy.run_log import LineKind, print_line, read_line


@pytest.mark.parametrize("kind", list(LineKind))
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("  client 3: late", "  client 3: late"),
        ("two\nlines\r\n", "two lines"),
        ("υ → “größer” 🌸", "υ → “größer” 🌸"),
    ],
)
def test_what_is_printed_is_one_line_and_is_read_as_it_was(
    capsys: pytest.CaptureFixture[str], kind: LineKind, text: str, said: str
) -> None:
    print_line(text, kind)
    (line,) = capsys.readouterr().out.splitlines()
    assert read_line(line) == (kind, said)
