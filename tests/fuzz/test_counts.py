"""How many inputs the fuzz tests feed in all, and that each of them is fed somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from tests.fuzz.inputs import INPUTS


def test_every_input_is_fed_and_there_are_enough() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    fed = re.findall(r'feed\(\s*"([^"]+)"', tests)
    assert sorted(fed) == sorted(INPUTS), "each name in INPUTS is fed by one test"
    assert sum(INPUTS.values()) >= 10_000
