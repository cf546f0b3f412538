"""Methods by name: those of this package, and `module:Class` of one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.template import TEMPLATE, write_template
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.config.whole_config import Config
from ipfl.errors import InputError
from ipfl.methods import (
    METHODS,
    method_class,
    method_fields,
    method_reference,
    method_settings,
    method_summary,
)
from ipfl.results.finished import FinishedRun

TINY = ["task.clients=4", "task.samples=20", "task.test_samples=10", "task.model=softmax", "rounds=2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a method of one's own as a file."""
    monkeypatch.chdir(tmp_path)
    write_template(tmp_path)
    yield tmp_path
    for name in ("interpolate", "broken_methods"):
        sys.modules.pop(name, None)


def invoke(*arguments: str, sets: list[str] = TINY) -> str:
    options = [option for text in sets for option in ("--set", text)]
    done = CliRunner().invoke(app, [*arguments, *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", METHODS)
def test_summary_read_from_the_source_is_that_of_the_class(name):
    assert method_summary(name) == method_class(name).summary


class TestOwnClass:
    def test_from_python(self, folder):
        method = ipfl.method(TEMPLATE, share=0.25)
        assert (type(method).__name__, method.share) == ("Interpolate", 0.25)
        assert method_class(TEMPLATE) is type(method)
        assert method_reference(method) == TEMPLATE
        assert method_settings(method) == {"name": TEMPLATE, "share": 0.25}
        assert method_fields(TEMPLATE) == ("share",)
        with pytest.raises(InputError, match=r"hyper-parameter of interpolate:Interpolate 'shar'.*'share'"):
            ipfl.method(TEMPLATE, shar=0.25)
        with pytest.raises(InputError, match=r"method\.share .*less than or equal to 1, not 2"):
            ipfl.method(TEMPLATE, share=2)

    def test_from_a_config(self, folder):
        (folder / "my.toml").write_text(f'[method]\nname = "{TEMPLATE}"\nshare = 0.75\n')
        assert Config.load(folder / "my.toml").build_method().share == 0.75
        variants = Config.load().build_methods([TEMPLATE, f"{TEMPLATE}:share=0.1", "fedavg"])
        assert [getattr(method, "share", None) for method in variants.values()] == [0.5, 0.1, None]

    def test_run_and_resume_from_the_command_line(self, folder):
        invoke("run", "--out", "whole", "--workers", "0", sets=[*TINY, f"method.name={TEMPLATE}"])
        summary = json.loads((folder / "whole" / "summary.json").read_text())
        assert summary["method"] == "interpolate"
        assert summary["config"]["method"] == {"name": TEMPLATE, "share": 0.5}
        # Resuming a finished run reads its method from the record, and plays no round.
        before = (folder / "whole" / "metrics.jsonl").read_bytes()
        invoke("run", "--resume", "whole", "--workers", "0", "--trust", sets=[])
        assert (folder / "whole" / "metrics.jsonl").read_bytes() == before
        assert type(FinishedRun.open(folder / "whole", trust=True).method) is method_class(TEMPLATE)

    def test_its_settings_are_shown(self, folder):
        assert "share" in invoke("methods", TEMPLATE, sets=[])
        shown = invoke("run", "--show-config", sets=[f"method.name={TEMPLATE}"])
        assert "share = 0.5" in shown
        assert f'name = "{TEMPLATE}"' in shown


BROKEN = """
from dataclasses import dataclass as plain_dataclass
from typing import ClassVar
from pydantic.dataclasses import dataclass
from ipfl.core import Method
from ipfl.methods.shared.one_model import OneModelMethod

def function(): ...

class NotAMethod: ...

@plain_dataclass(frozen=True)
class NotPydantic(OneModelMethod): ...

@dataclass
class Mutable(OneModelMethod):
    name: ClassVar[str] = "mutable"
    summary: ClassVar[str] = "fields that anybody may change"

@dataclass(frozen=True)
class Abstract(Method[int]):
    name: ClassVar[str] = "abstract"
    summary: ClassVar[str] = "without a round"

@dataclass(frozen=True)
class Nameless(OneModelMethod): ...
"""


class TestWhatIsNoMethod:
    @pytest.mark.parametrize(
        ("name", "complaint"),
        [
            ("function", "not a class that extends ipfl.core.Method"),
            ("NotAMethod", "not a class that extends ipfl.core.Method"),
            ("NotPydantic", "not a frozen pydantic dataclass"),
            ("Mutable", "not a frozen pydantic dataclass"),
            ("Abstract", "does not define init, offer, personalize, round"),
            ("Nameless", "does not define name, summary"),
            ("Missing", "cannot be imported: .*Missing"),
        ],
    )
    def test_is_refused_on_one_line(self, folder, name, complaint):
        (folder / "broken_methods.py").write_text(BROKEN)
        with pytest.raises(InputError, match=complaint) as error:
            ipfl.method(f"broken_methods:{name}")
        assert "\n" not in str(error.value)

    def test_a_name_that_nobody_has(self):
        with pytest.raises(InputError, match=r"unknown method 'fedavgg'; did you mean 'fedavg'\?") as error:
            ipfl.method("fedavgg")
        assert "module:Class" in str(error.value)
