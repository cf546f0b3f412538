"""`ipfl personalize`: from a finished run and a file of points to a model file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ipfl.data.archives import read_points
from ipfl.errors import InputError
from ipfl.runs.finished import FinishedRun


def write_personal_model(
    run: Path, data: Path, out: Path, *, overwrite: bool, say: Callable[[str], object]
) -> None:
    """Writes the model that the run's method gives to a client with these points, and says how good it is."""
    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already; choose another --out or pass --overwrite")
    if not out.resolve().parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.resolve().parent}")
    points = read_points(data)
    finished = FinishedRun.open(run)
    model = finished.personalize(points["x"], points["y"])
    say(f"accuracy on your points: {finished.accuracy(model, points['x'], points['y']):.1%}")
    if "x_test" in points and "y_test" in points:
        say(f"accuracy on x_test: {finished.accuracy(model, points['x_test'], points['y_test']):.1%}")
    finished.save(model, out)
    say(f"model in {out}")
