"""A change of structure changes no bit of any model: hashes written down before it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.same_models.play import KERNELS, PLAYS

HERE = Path(__file__).parent
HASHES = json.loads((HERE / "hashes.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_every_method_gives_the_models_that_it_gave(part):
    """Half of the methods each, in a process whose arithmetic does not depend on the processor."""
    names = list(PLAYS)[part::2]
    command = [sys.executable, str(HERE / "play.py"), *names]
    played = subprocess.run(
        command, env={**os.environ, **KERNELS}, capture_output=True, text=True, check=True
    )
    assert json.loads(played.stdout) == {name: HASHES[name] for name in names}
