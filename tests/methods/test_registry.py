"""Methods by name: those of this package, `module:Class` of one's own, and those of installed packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.federation import run_here
from tests.small_runs import InterruptAfter
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
    method_names,
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
    for name in ("interpolate", "broken_methods", "offered_package", "offered_package.methods"):
        sys.modules.pop(name, None)


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution that offers the same method as `offered`, and one that is not there."""
    site = folder / "site-packages"
    package, info = site / "offered_package", site / "offered_package-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "methods.py").write_text((folder / "interpolate.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-package\nVersion: 1.0\n")
    points = ["offered = offered_package.methods:Interpolate", "missing = offered_package.methods:Nothing"]
    (info / "entry_points.txt").write_text("\n".join(["[ipfl.methods]", *points, ""]))
    monkeypatch.syspath_prepend(str(site))
    return site


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

    def test_an_interrupted_run_is_resumed(self, folder):
        task = ipfl.Task.load(clients=4, samples=20, test_samples=10, model="softmax")
        whole = run_here(task, ipfl.method(TEMPLATE), rounds=3, out=folder / "whole")
        config, engine = ipfl.RunConfig(rounds=3), ipfl.local_engine(workers=0)
        with pytest.raises(ipfl.Interrupted) as stopped:
            ipfl.run(
                task,
                ipfl.method(TEMPLATE),
                config,
                engine=engine,
                out=folder / "part",
                observer=InterruptAfter(0),
            )
        assert len(stopped.value.result.history) == 1
        output = ipfl.RunOutput(folder / "part", resume=True)
        resumed = ipfl.run(task, ipfl.method(TEMPLATE), config, engine=engine, out=output)
        assert resumed.history == whole.history
        assert resumed.models["global"].tobytes() == whole.models["global"].tobytes()

    def test_compared_with_others(self, folder):
        labels = [TEMPLATE, f"{TEMPLATE}:share=0", "fedavg"]
        invoke("compare", "--methods", ",".join(labels), "--out", "compared", "--workers", "0")
        accuracy = self.accuracies(folder / "compared")
        assert list(accuracy) == labels
        assert accuracy[labels[1]] == accuracy["fedavg"], (
            "without a share of its own model a client has FedAvg's"
        )
        invoke("compare", "--resume", "compared", "--workers", "0", "--trust", sets=[])
        assert self.accuracies(folder / "compared") == accuracy

    def accuracies(self, folder: Path) -> dict[str, dict[str, float]]:
        content = json.loads((folder / "compare.json").read_text())
        return {label: entry["personalized_accuracy"] for label, entry in content["methods"].items()}

    def test_its_settings_are_shown(self, folder):
        assert "share" in invoke("methods", TEMPLATE, sets=[])
        shown = invoke("run", "--show-config", sets=[f"method.name={TEMPLATE}"])
        assert "share = 0.5" in shown
        assert f'name = "{TEMPLATE}"' in shown

    def test_a_finished_run_finds_it(self, folder):
        invoke("run", "--out", "run", "--workers", "0", sets=[*TINY, f"method.name={TEMPLATE}"])
        assert type(FinishedRun.open(folder / "run", trust=True).method) is method_class(TEMPLATE)


BROKEN = """
from dataclasses import dataclass as plain_dataclass
from typing import ClassVar
from pydantic.dataclasses import dataclass
from ipfl.core import Method
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.methods.shared.one_model import OneModelMethod

def function(): ...

class NotFrozen(FedAvg): ...

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

    def test_a_name_that_nobody_has(self, installed):
        with pytest.raises(InputError, match=r"unknown method 'offred'; did you mean 'offered'\?") as error:
            ipfl.method("offred")
        assert "module:Class" in str(error.value)


class TestInstalledPackage:
    def test_by_its_name(self, installed):
        method = ipfl.method("offered", share=0.25)
        assert type(method).__module__ == "offered_package.methods"
        assert method_reference(method) == "offered"
        assert method_settings(method) == {"name": "offered", "share": 0.25}

    def test_is_listed_with_the_others(self, installed):
        assert method_names() == [*METHODS, "offered", "missing"]

    def test_a_run_remembers_the_name(self, installed):
        invoke("run", "--out", "run", "--workers", "0", sets=[*TINY, "method.name=offered"])
        summary = json.loads(Path("run/summary.json").read_text())
        assert summary["config"]["method"]["name"] == "offered"
        invoke("run", "--resume", "run", "--workers", "0", sets=[])

    def test_what_it_does_not_have_is_an_error_of_one_line(self, installed):
        with pytest.raises(InputError, match=r"method 'offered_package\.methods:Nothing' cannot be imported"):
            ipfl.method("missing")

    def test_a_name_of_this_package_cannot_be_taken(self, installed):
        points = installed / "offered_package-1.0.dist-info" / "entry_points.txt"
        points.write_text("[ipfl.methods]\nfedavg = offered_package.methods:Interpolate\n")
        assert method_class("fedavg").__module__ == "ipfl.methods.one_model.fedavg"
        assert method_names() == [*METHODS]
        own = ipfl.method("offered_package.methods:Interpolate")
        assert method_reference(own) == "offered_package.methods:Interpolate"


def test_methods_of_this_package():
    for name in METHODS:
        assert method_class(name).name == name
        assert method_reference(ipfl.method(name)) == name
