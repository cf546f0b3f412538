"""`ipfl personalize`: from a finished run and a file of points to a model file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipfl.cli.options import NetworkName, ReplaceFiles, Trust
from ipfl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ipfl.results.finished import FinishedRun


def personalize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            help="Your points: an .npz file with x and y, and x_test and y_test if wanted; "
            "of a run on a table, also a table with its columns.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the model goes, a .safetensors file.")],
    network: NetworkName = None,
    overwrite: ReplaceFiles = False,
    trust: Trust = False,
) -> None:
    """Get a personalized model from a finished run, without a server.

    RUN is the folder that `ipfl run` wrote. The points in --data say what the model should be good at:
    x in the shape of the run's data, y the labels. With x_test and y_test, the accuracy there is printed.
    Methods that have no model for clients they never met say so. Models of the run's own clients: ipfl
    export.
    """
    from ipfl.results.client_model import make_model
    from ipfl.results.finished import FinishedRun
    from ipfl.results.model_files import export_model

    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already; choose another --out or pass --overwrite")
    finished = FinishedRun.open(run, model=network, trust=trust)
    finished.check_newcomers()
    points = _read_points(data, finished)
    measure = "score" if finished.network.target.kind == "regression" else "accuracy"
    model = finished.personalize(points["x"], points["y"])
    accuracy = finished.accuracy(model, points["x"], points["y"])
    typer.echo(f"{measure} on your points: {100 * accuracy:.1f} %")
    if "x_test" in points and "y_test" in points:
        accuracy = finished.accuracy(model, points["x_test"], points["y_test"])
        typer.echo(f"{measure} on x_test: {100 * accuracy:.1f} %")
    out.parent.mkdir(parents=True, exist_ok=True)
    export_model(make_model(finished.network, model, finished.summary.get("input_dtype")), out)
    typer.echo(f"model in {out}")


def _read_points(data: Path, finished: FinishedRun) -> Mapping[str, NDArray[Any]]:
    """Somebody's points; rows of a table become points as the run's own rows did."""
    from ipfl.data.own.archives import read_points
    from ipfl.data.own.table_files import is_table, read_rows

    if data.suffix == ".npz" or not is_table(data):
        return read_points(data)
    settings = finished.task.config
    if settings is None or settings.target is None:
        raise InputError(f"{data} is a table, but the run's points are no rows of one: give an .npz file")
    rows = read_rows(data, settings.client)
    points = finished.task.points(rows)
    if settings.target not in rows:
        raise InputError(f"{data} has no column {settings.target!r}, which the run predicts")
    labels = rows[settings.target]
    has_names = bool(finished.summary.get("class_names"))
    return {"x": points, "y": labels.astype(str).to_numpy(str) if has_names else labels.to_numpy()}
