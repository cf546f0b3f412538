"""The end of a command: an error of one line on stderr, and an exit code."""

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

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes; after Ctrl-C the one that shells use."""


class Commands(TyperGroup):
    """Turns whatever goes wrong into a line on stderr and an exit code: 2 for bad input, 1 for a failure."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in plain text: `rich` takes longer to import than everything else."""
        click.Command.format_help(self, ctx, formatter)

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command and exits."""
        debug = os.environ.get("IPFL_DEBUG") == "1"
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
            sys.exit(code if isinstance(code, int) else 0)
        except click.exceptions.Abort:
            exit_with_error("interrupted", INTERRUPTED)
        except click.ClickException as error:
            exit_with_error(_usage_text(error), BAD_INPUT)
        except InputError as error:
            if debug:
                raise
            exit_with_error(" ".join(_named_options(error).split()), BAD_INPUT)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python warns on exit
            sys.exit(FAILED)
        except Exception as error:
            if debug:
                raise
            is_bad_path = isinstance(error, ValueError) and "embedded null" in str(error)
            exit_with_error(_failure_text(error), BAD_INPUT if is_bad_path else FAILED)


def _usage_text(error: click.ClickException) -> str:
    """The text of an error in a command line."""
    if isinstance(error, click.NoSuchOption):
        from ipfl.config.sections import keys_named
        from ipfl.config.whole_config import Config

        meant = keys_named(error.option_name.lstrip("-").replace("-", "_"), Config)
        if meant:
            return f"No such option '{error.option_name}'. It is a setting: --set {' or '.join(meant)}=…"
    # Typer and click both name the nearest command.
    return " Did you mean ".join(dict.fromkeys(error.format_message().split(" Did you mean ")))


def _named_options(error: InputError) -> str:
    """The text of an error, with the option of a command where Python has a keyword."""
    return str(error).replace(error.keyword, error.option) if error.keyword else str(error)


def _failure_text(error: Exception) -> str:
    """One line for a bug of ours; the whole traceback for a client's code, which is the user's to fix."""
    if type(error).__name__ == "ClientFailedError":  # by name: its module would import torch
        return str(error).rstrip()
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{what} ({Path(last.filename).name}:{last.lineno}; IPFL_DEBUG=1 shows the traceback)"


def exit_with_error(message: str, code: int) -> NoReturn:
    """Prints what is wrong and exits."""
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)
