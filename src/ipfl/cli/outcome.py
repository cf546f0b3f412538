"""How a command ends: what went wrong in a line on stderr, and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click
import typer
from typer.core import TyperGroup

from ipfl.errors import InputError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Commands(TyperGroup):
    """Turns whatever goes wrong into a line on stderr and an exit code: 2 for bad input, 1 for a failure."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command and exits."""
        debug = os.environ.get("IPFL_DEBUG") == "1"
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
            sys.exit(code if isinstance(code, int) else 0)
        except click.exceptions.Abort:
            complain("interrupted", INTERRUPTED)
        except click.ClickException as error:
            complain(error.format_message(), 2)
        except InputError as error:
            if debug:
                raise
            complain(" ".join(str(error).split()), 2)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains on exit
            sys.exit(1)
        except Exception as error:
            if debug:
                raise
            complain(_failure(error), 1)


def _failure(error: Exception) -> str:
    """One line for a bug of ours; the whole traceback for a client's code, which is the user's to mend."""
    if type(error).__name__ == "ClientFailedError":  # by name: its module would import torch
        return str(error).rstrip()
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{what} ({Path(last.filename).name}:{last.lineno}; IPFL_DEBUG=1 shows the traceback)"


def complain(message: str, code: int) -> NoReturn:
    """Says what is wrong and exits."""
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
