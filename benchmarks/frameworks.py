"""Our round beside other frameworks': the plain loop, PFLlib's loop, `pfl` and Flower's simulation, in turns.

`pfl` and Flower are installed from the package index, each into an environment of its own in
`build/bench-envs`; only PyTorch and NumPy are those of this project, by links, so that nothing large is
fetched and all compute alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / "build" / "bench-envs"
PACKAGES = {"pfl": ["pfl==0.6.0"], "flower": ["flwr[simulation]==1.41.0"]}
"""What is installed into each environment."""
SHARED = (
    "torch", "torchgen", "functorch", "numpy", "numpy.libs", "sympy", "mpmath", "networkx", "jinja2",
    "markupsafe", "filelock", "fsspec", "typing_extensions.py",
)  # fmt: skip
"""What the environments take from this one: PyTorch and what it needs."""
SIZES = (((32, 32, 3), 50), ((28, 28, 1), 10))
LAST_LINE = 300
"""Characters of an error that are kept."""


def prepare(name: str) -> str | None:
    """Makes the environment of a framework, if it is not there; an error as text."""
    folder, mark = ENVIRONMENTS / name, ENVIRONMENTS / f"{name}.ready"
    wanted = " ".join(PACKAGES[name])
    if mark.is_file() and mark.read_text() == wanted:
        return None
    venv.create(folder, with_pip=True, clear=True)
    site = next(folder.glob("lib/python*/site-packages"))
    here = Path(sysconfig.get_paths()["purelib"])
    found = {
        path
        for name in SHARED
        for path in (here / name, *here.glob(f"{name.removesuffix('.py')}-*.dist-info"))
    }
    for path in found:
        if path.exists():
            (site / path.name).symlink_to(path)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *PACKAGES[name]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return f"cannot be installed: {last_line(done.stderr)}"
    mark.write_text(wanted)
    return None


def last_line(text: str) -> str:
    """The last line of an error that says something."""
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1].strip()[:LAST_LINE] if lines else "no message"


def commands() -> dict[str, list[str | Path]]:
    """How each contestant is started; JSON of the work comes after it."""
    return {
        "plain loop": [sys.executable, HERE / "plain_loop.py", "plain"],
        "ours": [sys.executable, HERE / "round.py", "--rounds-of"],
        "PFLlib's loop": [sys.executable, HERE / "plain_loop.py", "pfllib"],
        "pfl": [ENVIRONMENTS / "pfl" / "bin" / "python", HERE / "pfl_loop.py"],
        "Flower's simulation": [ENVIRONMENTS / "flower" / "bin" / "python", HERE / "flower_loop.py"],
    }


def run(command: list[str | Path], work: dict[str, Any]) -> list[float] | str:
    """Seconds of each round of one contestant, or what went wrong."""
    alone = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if ".venv" not in str(command[0]) and "bench-envs" in str(command[0]):
        alone.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            [*command, json.dumps(work)], capture_output=True, text=True, env=alone, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    if done.returncode:
        return f"fails: {last_line(done.stderr)}"
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A row per size and contestant: seconds of a round, and the ratio to the plain loop of the same turn."""
    errors = {} if quick else {name: prepare(name) for name in PACKAGES}
    broken = {"pfl": errors.get("pfl"), "Flower's simulation": errors.get("flower")}
    rows = []
    for shape, batch in SIZES[:1] if quick else SIZES:
        work = {"clients": 2 if quick else 5, "samples": 20 if quick else 200, "shape": shape, "batch": batch}
        work["rounds"] = 1 if quick else 3
        found: dict[str, list[float]] = {}
        failed: dict[str, str] = {name: text for name, text in broken.items() if text}
        for _ in range(1 if quick else 2):
            for name, command in list(commands().items())[: 3 if quick else None]:
                if name not in failed:
                    seconds = run(command, work)
                    if isinstance(seconds, str):
                        failed[name] = seconds
                    else:
                        found.setdefault(name, []).append(statistics.median(seconds))
        for name in commands():
            row: dict[str, Any] = {"size": "×".join(map(str, shape)), "batch": batch, "name": name}
            if name in failed:
                row["error"] = failed[name]
            elif name in found:
                ratios = [plain / own for plain, own in zip(found["plain loop"], found[name], strict=True)]
                row |= {"seconds": min(found[name]), "ratio": statistics.median(ratios)}
                row |= {"least": min(ratios), "most": max(ratios)}
            else:
                continue
            rows.append(row)
    return rows
