"""The public API: lazy, typed names; and every example in the documents does what it says."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from tests.small_runs import InterruptAfter, small_task
from tests.template import TEMPLATE, template_blocks, write_template
from torch import nn
from typer.testing import CliRunner

import ipfl
from ipfl import methods
from ipfl.cli import app
from ipfl.study.comparison import read_plan

ROOT = Path(__file__).parent.parent


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def python(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, **options
    ).stdout


class TestNames:
    def test_all_can_be_had(self):
        for name in ipfl.__all__:
            assert getattr(ipfl, name) is not None
        assert dir(ipfl) == sorted(ipfl.__all__)

    def test_unknown_name(self):
        with pytest.raises(AttributeError, match="no attribute 'nope'"):
            ipfl.nope  # noqa: B018

    def test_version_is_that_of_the_package(self):
        from importlib.metadata import version

        assert ipfl.__version__ == version("ipfl")


class TestDocuments:
    def test_readme(self, capsys):
        (example,) = blocks("README.md", "python")
        assert len(example.strip().splitlines()) <= 15
        exec(example.replace("rounds=30", "rounds=2"), {})
        lines = capsys.readouterr().out.splitlines()
        assert "of 20 clients gain nothing" in lines[1]
        assert sum(line.startswith("client ") for line in lines) == 20
        assert lines[-1].startswith("cluster_0, cluster_1; client 3: ")

    def test_python(self, tmp_path, monkeypatch, capsys):
        """All blocks of the page, one after the other, and its commands."""
        monkeypatch.chdir(tmp_path)
        names = {}
        for block in blocks("docs/python.md", "python"):
            exec(block, names)
        assert capsys.readouterr().out == "rounds should be greater than or equal to 1, not 0\n"
        result, comparison = names["result"], names["comparison"]
        assert (names["classes"] == names["shares"].argmax(1)).all()
        assert list(comparison.entries) == ["local", "ditto:lam=0.5", methods.REFERENCE]
        assert comparison.seeds == (0, 1)
        told = dict(re.findall(r"^\| `(\w+)` \| (`.*) \|$", (ROOT / "docs/python.md").read_text(), re.M))
        for table in ("clients", "rounds", "ledger"):
            assert re.findall(r"`(\w+)`", told[table]) == list(getattr(result, table)().columns)
        (commands,) = blocks("docs/python.md", "console")
        for command in commands.splitlines():
            done = CliRunner().invoke(app, command.removeprefix("$ ipfl ").split())
            assert done.exit_code == 0, done.output
        files = {"client-3.safetensors", "client-3.onnx", "cluster_0.safetensors"}
        assert files <= {path.name for path in tmp_path.iterdir()}
        assert len(list((tmp_path / "models").iterdir())) == 6

    def test_files_that_documents_point_to_exist(self):
        for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
            for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
                if "://" not in target:
                    assert (document.parent / target).exists(), f"{document.name}: {target}"

    def test_a_method_in_one_file(self, monkeypatch, tmp_path):
        """The method of CONTRIBUTING.md runs as it is written there, and becomes one of ours by its line."""
        monkeypatch.chdir(tmp_path)
        file = write_template(tmp_path)
        (commands,) = [block for block in blocks("CONTRIBUTING.md", "console") if TEMPLATE in block]
        run, compare = (line.removeprefix("$ ipfl ").split() for line in commands.splitlines())
        small = ["--workers", "0", "--set", "task.model=softmax", "--set", "rounds=2"]
        for command, out in ((run, "run"), (compare, "compared")):
            done = CliRunner().invoke(app, [*command, *small, "--out", out])
            assert done.exit_code == 0, done.output
        assert (tmp_path / "run" / "model" / "global.safetensors").exists()
        _, line = template_blocks()
        module = f"ipfl.methods.{TEMPLATE.partition(':')[0]}"
        spec = importlib.util.spec_from_file_location(module, file)
        monkeypatch.setitem(sys.modules, module, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules[module])
        for name, kind in eval(f"{{{line}}}").items():
            monkeypatch.setitem(methods.METHODS, name, kind)
        assert "share" in CliRunner().invoke(app, ["methods", "interpolate"]).output
        assert methods.method_class("interpolate").__module__ == module


class TestCompare:
    """`ipfl.compare` with tasks, networks and methods of one's own."""

    @staticmethod
    def own_task(seed=0):
        rng = np.random.default_rng(seed)
        clients = [(rng.normal(size=(24, 3)).astype(np.float32), np.arange(24) % 2) for _ in range(4)]
        return ipfl.Task.from_clients(clients, model=lambda shape, classes: nn.Linear(*shape, classes))

    def test_own_methods_and_labels(self):
        @dataclass(frozen=True)
        class Mine(methods.method_class("fedavg")):
            """The reference under another name."""

            name = "mine"

        given = {"mine": Mine(), "weak": ipfl.method("ditto", lam=0.1), "<b>": "ditto:lam=0.1"}
        task, config = self.own_task(), ipfl.RunConfig(rounds=2)
        done = ipfl.compare(task, given, [3], config, workers=0, progress=False)
        assert list(done.entries) == ["mine", "weak", "<b>", methods.REFERENCE]
        assert done.entries["<b>"].method == given["weak"]
        assert done.entries["mine"].results[3].summary["pma"] == {"mean": 0.0, "std": 0.0}
        assert done.entries["weak"].results[3].model(1)(torch.zeros(2, 3)).shape == (2, 2)
        alone = ipfl.run(task, given["weak"], ipfl.RunConfig(rounds=2, seed=3), progress=False)
        assert alone.last.personalized == done.entries["weak"].results[3].last.personalized

    def test_side_by_side_with_a_folder(self, tmp_path):
        """Models of clients come from the folder of a run that another process played."""
        task = self.own_task()
        done = ipfl.compare(task, ["ditto"], 2, {"rounds": 2}, out=tmp_path, workers=2, progress=False)
        here = ipfl.compare(task, ["ditto"], 2, {"rounds": 2}, workers=0, progress=False)
        for seed in (0, 1):
            there = done.entries["ditto"].results[seed]
            for name, tensor in here.entries["ditto"].results[seed].model(2).state_dict().items():
                assert torch.equal(tensor, there.model(2).state_dict()[name])
        with pytest.raises(ipfl.InputError, match="was begun in Python: resume it there"):
            read_plan(tmp_path)
        with pytest.raises(ipfl.InputError, match="holds a comparison: load one of its runs"):
            ipfl.load(tmp_path)
        again = ipfl.compare(
            task, ["ditto"], 2, {"rounds": 2}, out=tmp_path, resume=True, workers=0, progress=False
        )
        assert again.summary()["methods"]["ditto"]["pma"] == done.summary()["methods"]["ditto"]["pma"]

    def test_without_a_folder_no_models_leave_their_process(self):
        done = ipfl.compare(self.own_task(), ["ditto"], config={"rounds": 1}, workers=1, progress=False)
        with pytest.raises(ipfl.NotSupportedError, match="give it a folder"):
            done.entries["ditto"].results[0].model(0)

    def test_data_of_every_seed(self):
        """Named data is partitioned by the seed, own data stays, a function decides for itself."""
        from ipfl.study.study_run import make_task_cache

        own, named, asked = self.own_task(), small_task(seed=0), []

        def make(seed):
            asked.append(seed)
            return own

        first, second = ipfl.RunConfig(seed=0), ipfl.RunConfig(seed=1)
        cache = make_task_cache(own)
        assert cache.get(first) is cache.get(second) is own
        cache = make_task_cache(named)
        assert cache.get(first) is named
        assert (cache.get(second).seed, cache.get(second).config) == (1, named.config)
        cache = make_task_cache(make)
        assert cache.get(first) is cache.get(second) is own
        assert asked == [0, 1]

    @pytest.mark.parametrize(
        "arguments, says",
        [
            ({"methods": "ditto"}, r"expected a list of methods, such as \['ditto'\]"),
            ({"methods": ["nope"]}, "unknown method 'nope'"),
            ({"methods": {"a": "nope"}}, "unknown method 'nope'"),
            ({"methods": [methods.method_class("local")]}, r"not its class: Local\(\)"),
            ({"methods": {"a": 3}}, "expected a method, such as"),
            ({"methods": ["local"], "seeds": 0}, "no seed"),
            ({"methods": ["local"], "config": {"round": 1}}, "unknown key 'round'; did you mean 'rounds'"),
        ],
    )
    def test_refused(self, arguments, says):
        with pytest.raises(ipfl.InputError, match=says):
            ipfl.compare(self.own_task(), **arguments, progress=False)

    def test_no_task(self):
        for start in (ipfl.run, ipfl.compare):
            with pytest.raises(ipfl.InputError, match=r"expected a task, such as .*, not 'digits'"):
                start("digits", ["local"])

    def test_two_methods_with_one_name(self):
        class Other(methods.method_class("fedavg")):
            pass

        with pytest.raises(ipfl.InputError, match="two methods are called 'fedavg': give them as a dict"):
            ipfl.compare(self.own_task(), [Other(), "fedavg"], progress=False)

    def test_ctrl_c(self, tmp_path):
        with pytest.raises(KeyboardInterrupt) as stopped:
            ipfl.compare(
                self.own_task(), ["local"], config={"rounds": 3}, out=tmp_path, workers=0,
                make_observer=lambda *_: InterruptAfter(0),
            )  # fmt: skip
        assert stopped.value.result.interrupted
        assert (tmp_path / "compare.json").exists()


class TestProgress:
    def test_shown_by_default_and_not_if_unwanted(self, capsys):
        task, config = small_task(), ipfl.RunConfig(rounds=2)
        ipfl.run(task, "local", config, engine=ipfl.local_engine(0))
        shown = capsys.readouterr()
        assert shown.err.splitlines()[0] == "local: 2 rounds"
        assert "2 of 2 rounds, accuracy" in shown.err
        assert shown.out == ""
        ipfl.run(task, "local", config, engine=ipfl.local_engine(0), progress=False)
        ipfl.compare(task, ["local"], config=config, workers=0, progress=False)
        assert capsys.readouterr() == ("", "")
        ipfl.compare(task, ["local"], config=config, workers=0)
        assert "2/2 local: 2 of 2 rounds" in capsys.readouterr().err

    @pytest.mark.parametrize("widgets, bars", [(True, True), (False, False)])
    def test_in_notebooks(self, monkeypatch, widgets, bars):
        """Bars where the notebook has widgets, lines elsewhere."""
        from rich.console import Console

        from ipfl.report import progress

        monkeypatch.setattr(progress, "find_spec", lambda name: object() if widgets else None)
        monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
        assert progress.progress_console().is_jupyter is bars  # otherwise plain lines, not a block for each
        console = Console(force_jupyter=True)
        assert progress.can_draw_bars(console) is bars
        kind = progress.RunBar if bars else progress.RunLines
        assert type(progress.RunsProgress(console)("m", 1, 1)) is kind


class TestErrors:
    @pytest.mark.parametrize(
        "make, says",
        [
            (lambda: ipfl.RunConfig(rounds=0), "rounds should be greater than or equal to 1, not 0"),
            (lambda: ipfl.RunConfig(train={"lr": -1}), "train.lr should be greater than 0, not -1"),
            (lambda: ipfl.TrainConfig(learning_rate=1), "unknown key 'learning_rate'"),
            (lambda: ipfl.Task.load(clients="many"), "clients should be a valid integer"),
        ],
    )
    def test_settings(self, make, says):
        with pytest.raises(ipfl.InputError, match=says):
            make()

    def test_no_words_of_the_command_line(self):
        """What Python users read has no options in it: only the command line speaks of those."""
        for file in (ROOT / "src/ipfl").rglob("*.py"):
            if file.relative_to(ROOT / "src/ipfl").parts[0] in ("cli", "deploy", "console", "reproduce"):
                continue  # these have commands only
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error"):
                    words = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                    text = " ".join(word for word in words if isinstance(word, str))
                    assert not re.search(r"(^|\s)--[a-z]|ipfl (run|compare) ", text), f"{file.name}: {text}"
