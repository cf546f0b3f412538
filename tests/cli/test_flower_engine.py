"""`ipfl run --engine flower`: what it refuses before anything is started."""

import importlib.util
import os
import subprocess
import sys

import pytest
from tests.cli.test_cli import refused


@pytest.mark.parametrize("setting", ["adversary.share=0.5", "faults.dropout=0.1", "faults.broken=0.1"])
def test_before_anything_is_started(tmp_path, setting):
    """One line, no results."""
    out = tmp_path / "run"
    said = refused("run", "--set", "task.clients=4", "--set", setting, "--engine", "flower", "--out", out)
    why = "[adversary] and [faults] need the local engine: no other one can make clients fail"
    assert said == f"error: {why}\n"
    assert not out.exists()


def test_without_the_extra(monkeypatch):
    """As where it is not installed: the import system finds no such module."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else find(name))
    said = refused("run", "--engine", "flower")
    assert 'flwr is not installed; install the extra with: pip install "ipfl[flower]"' in said


def test_no_telemetry():
    """flwr reads its switch once, when it is imported; a module of ours sets it before."""
    code = "import ipfl.engines.flower.node_app, flwr.supercore.telemetry as t;"
    code += "print(t.FLWR_TELEMETRY_ENABLED)"
    plain = {key: value for key, value in os.environ.items() if key != "FLWR_TELEMETRY_ENABLED"}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
