"""`ipfl personalize`: from a finished run and a file of points to a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ipfl.cli.options import NetworkName, ReplaceFiles, Trust
from ipfl.errors import InputError


def personalize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data", help="Your points: an .npz file with x and y, and x_test and y_test if wanted."
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
    from ipfl.client.client_model import make_model
    from ipfl.client.export import export_model
    from ipfl.data.archives import read_points
    from ipfl.runs.finished import FinishedRun

    if out.exists() and not overwrite:
        raise InputError(f"{out} exists already; choose another --out or pass --overwrite")
    finished = FinishedRun.open(run, model=network, trust=trust)
    finished.check_newcomers()
    points = read_points(data)
    model = finished.personalize(points["x"], points["y"])
    accuracy = finished.accuracy(model, points["x"], points["y"])
    typer.echo(f"accuracy on your points: {100 * accuracy:.1f} %")
    if "x_test" in points and "y_test" in points:
        accuracy = finished.accuracy(model, points["x_test"], points["y_test"])
        typer.echo(f"accuracy on x_test: {100 * accuracy:.1f} %")
    out.parent.mkdir(parents=True, exist_ok=True)
    export_model(make_model(finished.network, model, finished.summary.get("input_dtype")), out)
    typer.echo(f"model in {out}")
