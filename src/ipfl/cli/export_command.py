"""`ipfl export`: the models of a finished run as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ipfl.cli.options import NetworkName, ReplaceFiles, Trust
from ipfl.errors import InputError
from ipfl.keep.file_names import EXPORTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipfl.results.model_files import Format
    from ipfl.results.result import Result


def export_models(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="I", help="The model of this client: its id, or its name. Repeatable."
        ),
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="The models of all clients.")] = False,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="NAME", help="A model of the server, such as cluster_0 or global. Repeatable."
        ),
    ] = None,
    format_name: Annotated[
        Literal["safetensors", "torchscript", "onnx"],
        typer.Option(
            "--format", help="safetensors: parameters; torchscript, onnx: programs that take raw points."
        ),
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

    A safetensors file loads into the plain network with load_state_dict. A program (torchscript, onnx) takes
    points as they were given to the run and returns class scores; onnx needs the extra `onnx`.
    Transfers of tokens: ipfl ledger export.
    """
    from ipfl.core.client_names import find_client
    from ipfl.results.finished import load
    from ipfl.results.model_files import check_format, export_model

    if not (clients or everyone or models):
        raise InputError("say which models: --client 3, --all or --model cluster_0")
    chosen = check_format(format_name)
    result = load(run, model=network, trust=trust)
    names = result.client_names
    chosen_clients = [find_client(text, names) for text in clients or []]
    wanted = _wanted(result, chosen_clients, everyone, models or [])
    paths = _paths(wanted, out, run, chosen)
    for path in paths.values():
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists already; choose another --out or pass --overwrite")
    for which, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_model(result.model(which), path, chosen)
        typer.echo(f"{_title(which, names)}: {path}")


def _wanted(result: Result, clients: list[int], everyone: bool, models: list[str]) -> list[int | str]:
    """Ids of clients, then names of server models, each once."""
    assert result.source is not None
    known = result.source.clients if everyone else tuple(clients)
    return list(dict.fromkeys([*known, *models]))


def _paths(
    wanted: list[int | str], out: Path | None, run: Path, format_name: Format
) -> dict[int | str, Path]:
    """Where each model goes."""
    from ipfl.results.model_files import EXPORT_SUFFIXES

    suffix = EXPORT_SUFFIXES[format_name]
    if out is not None and len(wanted) == 1 and not out.is_dir() and out.suffix:
        return {wanted[0]: out}
    folder = run / EXPORTS if out is None else out
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder for {len(wanted)} models")
    return {which: folder / f"{_title(which).replace(' ', '-')}{suffix}" for which in wanted}


def _title(which: int | str, names: Mapping[int, str] | None = None) -> str:
    """How a model is called: clients by their names, if these are given."""
    return which if isinstance(which, str) else f"client {(names or {}).get(which, which)}"
