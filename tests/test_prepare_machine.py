"""`make test` gets Chromium and openssl itself, or stops with one line before anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("prepare_machine.py")
WORKS = "#!/bin/sh\nexit 0\n"
INSTALLS = """\
#!/bin/sh
# apt-get, which installs what it is told last: a program that works.
for name; do :; done
case "$1" in install) printf '#!/bin/sh\\nexit 0\\n' > "$BIN/$name"; /bin/chmod +x "$BIN/$name";; esac
"""
SUDO = '#!/bin/sh\nshift\nexec "$@"\n'
REFUSES = "#!/bin/sh\necho 'no network' >&2\nexit 100\n"


@pytest.fixture
def prepare(tmp_path):
    """Runs the script on a machine with these programs and no others; returns code, output, what is there."""

    def run(venv_python=None, **programs):
        bin = tmp_path / "bin"
        bin.mkdir()
        for name, content in programs.items():
            (bin / name.replace("_", "-")).write_text(content)
            (bin / name.replace("_", "-")).chmod(0o755)
        if venv_python is not None:
            (tmp_path / "venv/bin").mkdir(parents=True)
            (tmp_path / "venv/bin/python").write_text(venv_python)
            (tmp_path / "venv/bin/python").chmod(0o755)
        environment = {"PATH": str(bin), "BIN": str(bin), "HOME": os.environ.get("HOME", "/")}
        command = [sys.executable, str(SCRIPT), str(tmp_path / "venv"), "chromium", "openssl"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_nothing_to_do(prepare):
    assert prepare(chromium=WORKS, openssl=WORKS) == (0, "", "")


def test_from_the_systems_packages(prepare, tmp_path):
    code, told, _ = prepare(apt_get=INSTALLS, sudo=SUDO, openssl=WORKS)
    assert (code, told) == (0, "installing chromium …\n")
    assert (tmp_path / "bin/chromium").exists()


def test_a_program_that_does_not_start_is_missing(prepare):
    """Ubuntu's `chromium` without snap."""
    assert prepare(apt_get=REFUSES, chromium=REFUSES, openssl=WORKS, venv_python=REFUSES)[0] == 1


def test_else_playwrights_own(prepare):
    """The Python of the virtual environment says that Playwright starts its Chromium."""
    assert prepare(apt_get=REFUSES, openssl=WORKS, venv_python=WORKS)[0] == 0


def test_one_line_if_nothing_helps(prepare):
    code, _, error = prepare(apt_get=REFUSES, sudo=SUDO, venv_python=REFUSES)
    told = "chromium and openssl cannot be installed from here: apt-get install chromium openssl\n"
    assert (code, error) == (1, told)
