"""`ipfl personalize`: from a finished run and a file of points to a model file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ipfl.data.archives import read_arrays
from ipfl.errors import InputError
from ipfl.runs.finished import FinishedRun


def _read_points(path: Path) -> dict[str, NDArray[Any]]:
    points = dict(read_arrays(path))
    if missing := [name for name in ("x", "y") if name not in points]:
        raise InputError(
            f"{path} has no {' and no '.join(missing)}; it holds {', '.join(points) or 'nothing'}"
        )
    return points


def write_personal_model(
    run: Path, data: Path, out: Path, *, overwrite: bool, say: Callable[[str], object]
) -> None:
    """Writes the model that the run's method gives to a client with these points, and says how good it is."""
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already; choose another --out or pass --overwrite")
    if not out.resolve().parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.resolve().parent}")
    points = _read_points(data)
    finished = FinishedRun.open(run)
    model = finished.personalize(points["x"], points["y"])
    say(f"accuracy on your points: {finished.accuracy(model, points['x'], points['y']):.1%}")
    if "x_test" in points and "y_test" in points:
        say(f"accuracy on x_test: {finished.accuracy(model, points['x_test'], points['y_test']):.1%}")
    finished.save(model, out)
    say(f"model in {out}")
