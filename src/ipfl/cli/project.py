"""`ipfl new`: a small project of one's own, which runs at once and is meant to be changed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ipfl.errors import InputError

TEMPLATE = {
    "ipfl.toml": "ipfl.toml",
    "my_data.py.txt": "my_data.py",
    "my_network.py.txt": "my_network.py",
    "test_project.py.txt": "test_project.py",
    "README.md": "README.md",
    "gitignore.txt": ".gitignore",
}
"""File of the template → file of the project. Python files end in .txt here: they are not ours."""


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; new or empty.")],
) -> None:
    """Write a small project of your own: settings, a data loader, a network, a test, a README.

    It runs at once; put your data and your network in their places.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already and is not an empty folder")
    template = files("ipfl.cli") / "project_template"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, target in TEMPLATE.items():
            text = (template / source).read_text(encoding="utf-8")
            (folder / target).write_text(text.replace("PROJECT", folder.resolve().name), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
    typer.echo(f"{folder}: {', '.join(TEMPLATE.values())}")
    typer.echo(f"Try it: cd {folder} && ipfl run ipfl.toml")
