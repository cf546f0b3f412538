"""Gets what `make` needs and pip does not bring: `chromium`, `openssl`, and on Debian `python3-venv`.

    python tests/prepare_machine.py VENV NAME…

From the system's packages, as root or by sudo without a password; for Chromium else Playwright's own, in the
virtual environment. It uses only the standard library and comes first: what is missing is said in one line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKS = {
    "chromium": ("chromium", "--version"),
    "openssl": ("openssl", "version"),
    "python3-venv": (sys.executable, "-c", "import ensurepip"),
}
"""By the name of its package: a command that ends without an error if it is there."""
APT_OPTIONS = ("-qq", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::Retries=1")
OPENS = "from playwright.sync_api import sync_playwright as p\nwith p() as own: own.chromium.launch().close()"


def succeeds(*command: str) -> bool:
    """Whether a command ends without an error; what it prints is not shown."""
    if shutil.which(command[0]) is None:
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0


def install_packages(names: list[str]) -> None:
    """Installs packages of Debian and its relatives, where this user may."""
    apt = ("apt-get",) if os.geteuid() == 0 else ("sudo", "-n", "apt-get")
    if succeeds(*apt, "update", *APT_OPTIONS):
        for name in names:
            succeeds(*apt, "install", "-y", "--no-install-recommends", *APT_OPTIONS, name)


def has_own_chromium(venv: Path) -> bool:
    """Whether Playwright's Chromium starts, after an attempt to install it."""
    python = str(venv / "bin" / "python")
    if succeeds(python, "-c", OPENS):
        return True
    return (
        (Path(python).exists() or succeeds(sys.executable, "-m", "venv", str(venv)))
        and succeeds(python, "-m", "pip", "install", "--no-compile", "-c", "constraints.txt", "playwright")
        and succeeds(python, "-m", "playwright", "install", "chromium")
        and succeeds(python, "-c", OPENS)
    )


def main(venv: Path, names: list[str]) -> None:
    """Gets what is missing of these; exits with one line if that is not possible."""
    missing = [name for name in names if not succeeds(*CHECKS[name])]
    if not missing:
        return
    print(f"installing {' and '.join(missing)} …", flush=True)
    install_packages(missing)
    missing = [name for name in missing if not succeeds(*CHECKS[name])]
    if "chromium" in missing and has_own_chromium(venv):
        missing.remove("chromium")
    if missing:
        sys.exit(
            f"{' and '.join(missing)} cannot be installed from here: apt-get install {' '.join(missing)}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
