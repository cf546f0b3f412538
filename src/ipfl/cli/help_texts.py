"""How `--help` looks: paragraphs that fit the terminal, and what each argument means."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo


class DescribedCommand(TyperCommand):
    """A command whose help says what its arguments mean: Typer 0.20 loses that with click 8.5."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters; arguments with the texts of the function's annotations."""
        params = super().get_params(ctx)
        hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback else {}
        for param in params:
            if isinstance(param, TyperArgument) and not param.help and param.name:
                found = getattr(hints.get(param.name), "__metadata__", ())
                param.help = next((one.help for one in found if isinstance(one, ArgumentInfo)), None)
        return params


def improve_help(app: typer.Typer) -> None:
    """Lets the lines of a paragraph flow, in all commands: terminals are not as wide as our files."""
    for command in app.registered_commands:
        paragraphs = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "").split("\n\n")
        command.help = command.help or "\n\n".join(" ".join(one.split()) for one in paragraphs)
        command.cls = DescribedCommand
    for group in app.registered_groups:
        if group.typer_instance:
            improve_help(group.typer_instance)
