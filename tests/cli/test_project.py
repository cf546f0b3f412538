"""`ipfl new` writes a project that runs at once; completion; the package as others install it."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from tests.cli.test_cli import IPFL, ipfl, refused

ROOT = Path(__file__).parents[2]


class TestNew:
    def test_it_runs_at_once(self, tmp_path, monkeypatch):
        """Its commands, as its README has them, and its test; in this process, which is faster."""
        assert ipfl("new", tmp_path / "mine").exit_code == 0
        readme = (tmp_path / "mine" / "README.md").read_text()
        assert readme.startswith("# mine\n")
        *commands, test = re.findall(r"^\$ (.*?)(?:  .*)?$", readme, re.M)
        assert len(commands) == 5
        assert test == "python -m pytest"
        monkeypatch.chdir(tmp_path / "mine")
        monkeypatch.setattr(sys, "path", [str(tmp_path / "mine"), *sys.path])
        try:
            for command in commands:
                words = command.split()[1:]
                done = ipfl(
                    *words, *(("--rounds", 2, "--workers", 0) if words[0] in ("run", "compare") else ())
                )
                assert done.exit_code == 0, done.output
                assert words[0] != "show" or "north" in done.stdout
            runpy.run_path("test_project.py")["test_a_short_run"]()
        finally:
            for name in ("my_data", "my_network"):
                sys.modules.pop(name, None)

    def test_a_folder_with_something_in_it(self, tmp_path):
        (tmp_path / "notes.txt").touch()
        assert "not an empty folder" in refused("new", tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "typed, offered",
    [("ipfl pers", "personalize"), ("ipfl ledger ver", "verify"), ("ipfl run --method fedprot", "fedproto")],
)
def test_completion(typed, offered):
    """The answer to the shell when the tabulator is pressed."""
    words = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
        "_IPFL_COMPLETE": "complete_bash",
    }
    done = subprocess.run([IPFL], env=os.environ | words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.slow
def test_what_others_install(tmp_path):
    """An sdist, installed into an environment that only sees our dependencies; the wheel is the same."""
    (tmp_path / "source").mkdir()
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "source")
    shutil.copytree(ROOT / "src", tmp_path / "source" / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "experiments/paper", tmp_path / "source" / "experiments/paper")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d"]
    subprocess.run([*build, tmp_path / "dist"], cwd=tmp_path / "source", check=True, capture_output=True)
    wheel, sdist = sorted((tmp_path / "dist").iterdir())
    assert (wheel.suffix, sdist.suffix) == (".whl", ".gz")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    place = tmp_path / "environment"
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = ["--python", place / "bin" / "python"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet"]
    pip = [sys.executable, "-m", "pip", *where, "install", *options, sdist]
    subprocess.run(pip, check=True, env=environment)
    with zipfile.ZipFile(wheel) as archive:  # pip has made such a wheel of the sdist, and unpacked it
        for name in archive.namelist():
            if not name.endswith("/RECORD"):
                assert (packages / name).read_bytes() == archive.read(name), name
    code = "import importlib.util; print(importlib.util.find_spec('ipfl').origin)"
    found = subprocess.check_output([place / "bin" / "python", "-c", code], text=True, env=environment)
    assert Path(found.strip()).is_relative_to(place)
    made = tmp_path / "project"
    for command in (
        ["reproduce", "list"],  # the experiments are installed too
        ["new", made],
        ["run", made / "ipfl.toml", "--rounds", "1", "--out", made / "run", "-q"],
    ):
        subprocess.run([place / "bin" / "ipfl", *command], check=True, env=environment, cwd=tmp_path)
    assert (made / "run" / "summary.json").exists()
