"""The public API: lazy, typed names; and every example in the documents does what it says."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.template import TEMPLATE, template_blocks, write_template
from typer.testing import CliRunner

import ipfl
from ipfl import methods
from ipfl.cli import app

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

    def test_import_loads_nothing_heavy(self):
        code = (
            "import sys, ipfl; print([m for m in ('torch', 'numpy', 'pydantic', 'rich') if m in sys.modules])"
        )
        assert python(code).strip() == "[]"

    def test_running_loads_torch_and_nothing_else_that_is_slow(self):
        slow = ("scipy.stats", "sklearn", "matplotlib", "flwr")
        code = f"import sys, ipfl; ipfl.run; print([m for m in {slow} if m in sys.modules])"
        assert python(code).strip() == "[]"

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
        assert any(line.startswith("cluster_1: ") for line in lines)

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
