"""`ipfl export` and `ipfl personalize`: models of a finished run as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ipfl.cli.options import NetworkName, ReplaceFiles, Trust
from ipfl.errors import InputError
from ipfl.keep.file_names import EXPORTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ipfl.results.finished import FinishedRun
    from ipfl.results.model_files import Format
    from ipfl.results.result import Result


def export_models(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHICH…]",
            help="A client's id or name, or a model of the server, such as cluster_0 or global; "
            "default: all clients.",
        ),
    ] = None,
    format_name: Annotated[
        Literal["safetensors", "onnx"],
        typer.Option("--format", help="safetensors: parameters; onnx: a program that takes raw points."),
    ] = "safetensors",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A file for one model, else a folder; default: export/ in RUN."),
    ] = None,
    network: NetworkName = None,
    overwrite: ReplaceFiles = False,
    trust: Trust = False,
) -> None:
    """Write models of a finished run to files.

    A safetensors file loads into the plain network with load_state_dict. An onnx program takes
    points as they were given to the run and returns class scores; onnx needs the extra `onnx`.
    Transfers of tokens: ipfl ledger export.
    """
    from ipfl.results.finished import load
    from ipfl.results.model_files import check_model_format, export_model

    chosen = check_model_format(format_name)
    result = load(run, model=network, trust=trust)
    paths = _paths(_wanted(result, which or []), out, run, chosen)
    for path in paths.values():
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists already; choose another --out or pass --overwrite")
    for model, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_model(result.model(model), path, chosen)
        typer.echo(f"{_title(model, result.client_names)}: {path}")


def _wanted(result: Result, names: list[str]) -> list[int | str]:
    """Ids of clients and names of server models, each once; all clients if none is named."""
    assert result.source is not None
    if not names:
        return list(result.source.clients)

    def meant(name: str) -> int | str:
        if name in result.models:
            return name
        return result.client_ids.get(name, int(name) if name.isdecimal() else name)

    return list(dict.fromkeys(map(meant, names)))


def _paths(
    wanted: list[int | str], out: Path | None, run: Path, format_name: Format
) -> dict[int | str, Path]:
    """The file of each model."""
    if out is not None and len(wanted) == 1 and not out.is_dir() and out.suffix:
        return {wanted[0]: out}
    folder = run / EXPORTS if out is None else out
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder for {len(wanted)} models")
    return {which: folder / f"{_title(which).replace(' ', '-')}.{format_name}" for which in wanted}


def _title(which: int | str, names: Mapping[int, str] | None = None) -> str:
    """The name of a model: clients by their names, if these are given."""
    return which if isinstance(which, str) else f"client {(names or {}).get(which, which)}"


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
