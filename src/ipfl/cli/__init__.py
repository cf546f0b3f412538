"""The command line: a module for each group of commands; this one puts them together.

Modules here import only typer at the top, and what a command needs inside it: `ipfl --help` must be fast. The
package may import all others, and none imports it.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

from ipfl.cli.console_command import console
from ipfl.cli.data_commands import app as data_app
from ipfl.cli.deploy_commands import app as deploy_app
from ipfl.cli.exit_codes import Commands
from ipfl.cli.ledger_commands import app as ledger_app
from ipfl.cli.model_commands import export_models, personalize
from ipfl.cli.project import new
from ipfl.cli.report_commands import plot, report, theory
from ipfl.cli.reproduce_command import app as reproduce_app
from ipfl.cli.run_commands import compare, run
from ipfl.cli.show_commands import datasets, list_runs, methods, partitions, show
from ipfl.methods import DEFAULT, REFERENCE

EXAMPLE_METHODS = ",".join(dict.fromkeys([DEFAULT, REFERENCE]))


def _help_examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["For example:", *lines])


def _version(wanted: bool) -> None:
    if wanted:
        from ipfl import __version__

        typer.echo(f"ipfl {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_help_examples(
        "ipfl run", "ipfl run --show-config > my.toml", f"ipfl compare --methods {EXAMPLE_METHODS} --seeds 3"
    ),
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Incentivized and personalized federated learning (IP-FL), and the methods it is compared with."""


app.command(
    epilog=_help_examples(
        "ipfl run my.toml --out runs/mine",
        f"ipfl run --method {REFERENCE} --rounds 50 --set train.lr=0.05",
        "ipfl run --resume runs/mine --rounds 60",
        "ipfl run --engine flower",
    )
)(run)
app.command(
    epilog=_help_examples(
        f"ipfl compare --methods {EXAMPLE_METHODS} --seeds 3 --out runs/mine",
        f"ipfl compare my.toml --methods {EXAMPLE_METHODS} --set task.partition=30:70",
    )
)(compare)
app.command(epilog=_help_examples("ipfl new mine && cd mine && ipfl run ipfl.toml"))(new)
app.command("list", epilog=_help_examples("ipfl list", "ipfl list runs/compare --json"))(list_runs)
app.command(epilog=_help_examples("ipfl show runs/mine", "ipfl show runs/mine --json"))(show)
app.command(
    epilog=_help_examples("ipfl personalize runs/mine --data my-points.npz --out my-model.safetensors")
)(personalize)
app.command(
    "export",
    epilog=_help_examples(
        "ipfl export runs/mine 3",
        "ipfl export runs/mine --format onnx --out models",
        "ipfl export runs/mine cluster_0 --out cluster_0.safetensors",
    ),
)(export_models)
app.command(
    epilog=_help_examples("ipfl plot runs/mine --figure tokens", "ipfl plot runs/compare --out figures")
)(plot)
app.command(epilog=_help_examples("ipfl report runs/compare --out report.html"))(report)
app.command(epilog=_help_examples("ipfl theory --list", "ipfl theory region --trials 5000"))(theory)
app.command(epilog=_help_examples("ipfl console --runs runs", "ipfl console --runs runs --auth"))(console)
app.command(epilog=_help_examples(f"ipfl methods {REFERENCE}"))(methods)
app.command()(datasets)
app.command()(partitions)


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


app.add_typer(reproduce_app, name="reproduce")
app.add_typer(data_app, name="data")
app.add_typer(ledger_app, name="ledger")
app.add_typer(deploy_app, name="deploy")
improve_help(app)


def main() -> None:
    """Entry point of the `ipfl` command."""
    app()
