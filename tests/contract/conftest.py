"""The methods that the contract suite is run with: all registered ones, and the template of CONTRIBUTING."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contract.plays import TINY
from tests.template import TEMPLATE, write_template

import ipfl
from ipfl.client.task import Task
from ipfl.core import (
    Method,
)
from ipfl.methods import METHODS


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.load(**TINY, unseen=1)


@pytest.fixture(scope="module")
def template_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the method of CONTRIBUTING.md as a file."""
    folder = tmp_path_factory.mktemp("template")
    write_template(folder)
    return folder


@pytest.fixture(params=[*sorted(METHODS), TEMPLATE])
def method(
    request: pytest.FixtureRequest, template_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Method[Any]:
    monkeypatch.setattr(sys, "path", [str(template_folder), *sys.path])
    return ipfl.method(request.param)
