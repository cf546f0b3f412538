"""The methods that the contract suite is run with: all registered ones, and the template of CONTRIBUTING."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.contract.plays import TINY, Play
from tests.small_nets import small_model
from tests.template import TEMPLATE, write_template

import ipfl
from ipfl.core import Method
from ipfl.methods import METHODS, method_reference
from ipfl.training.task import Task


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


@cache
def task_with(model: str) -> Task:
    return Task.load(**TINY | {"model": model}, unseen=1)


@pytest.fixture
def task(method: Method[Any]) -> Task:
    """Six clients, and a network that has the parts which the method needs."""
    return task_with(small_model(method_reference(method)))


@pytest.fixture(scope="module")
def plays() -> Iterator[dict[str, Play]]:
    """The rounds that were played for `played`, by method."""
    plays: dict[str, Play] = {}
    yield plays
    for play in plays.values():
        play.local.close()


@pytest.fixture
def played(task: Task, method: Method[Any], plays: dict[str, Play]) -> Play:
    """All rounds of the method, played once for the tests that only look at what happened in them."""
    name = method_reference(method)
    if name not in plays:
        plays[name] = Play(task, method).rounds()
    return plays[name]
