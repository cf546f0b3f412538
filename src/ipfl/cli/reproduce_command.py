"""`ipfl reproduce`: the paper's tables and figures again. Only typer is imported at the top."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import typer
from typer.core import TyperGroup

from ipfl.cli.exit_codes import FAILED, INTERRUPTED, exit_with_error
from ipfl.cli.options import ParallelRuns, Quiet, run_observers, stdout_console
from ipfl.errors import InputError

if TYPE_CHECKING:
    from ipfl.reproduce.reproduction import ReproductionOutcome

RUN = "run"
"""The command that a name of an experiment stands for."""


class NamesOrCommands(TyperGroup):
    """A group in which everything that is no command is the name of an experiment."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the command in front that runs experiments, where there is none."""
        is_command = bool(args) and (args[0] in self.commands or args[0] in ("--help", "-h"))
        return super().parse_args(ctx, args if is_command or not args else [RUN, *args])


app = typer.Typer(
    cls=NamesOrCommands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reproduce the paper's tables and figures: NAME is one of `ipfl reproduce list`, or `all`.",
    epilog="For example:\n\nipfl reproduce emnist-accuracy --scale cpu --seeds 5",
)

ScaleOption = Annotated[
    Literal["smoke", "cpu", "paper"],
    typer.Option(
        "--scale", help="smoke: seconds; cpu: minutes for a seed on two cores; paper: as in the paper."
    ),
]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="See `ipfl reproduce list`; all: all.")]
Results = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the numbers, NAME/SCALE.json.")
]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder for the runs; resumed from there.")]
OtherCommitOption = Annotated[
    Literal["refuse", "use", "replay"],
    typer.Option("--other-commit", help="What to do with finished runs of another commit."),
]
SomeMethods = Annotated[
    str | None,
    typer.Option("--methods", metavar="A,B", help="Only these; what was found for the others stays."),
]
RESULTS, RUNS = Path("experiments/results"), Path("runs/reproduce")


def _read_seeds(text: str, first: int) -> list[int]:
    """`5`: so many from the first on; `0,3` or `0-4`: these; also `0`, or one that only tuning may use."""
    from ipfl.reproduce.tuning import FIRST_SEED

    try:
        if text.isdecimal() and 0 < int(text) < FIRST_SEED:
            seeds = list(range(first, first + int(text)))
        else:
            parts = [part.split("-") for part in text.split(",") if part.strip()]
            seeds = [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError as error:
        raise InputError(
            f"--seeds {text}: expected a number of seeds, or seeds such as 0,3 or 0-4"
        ) from error
    if not seeds or min(seeds) < 0:
        raise InputError(f"--seeds {text} names no seed")
    return list(dict.fromkeys(seeds))


def _method_labels(methods: str | None) -> list[str] | None:
    """`A,B` as labels of methods; None: all."""
    return None if methods is None else methods.split(",")


@app.command(RUN, hidden=True)
def run_experiments(
    names: Names,
    scale: ScaleOption = "cpu",
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", metavar="N|A,B|A-B", help="How many, counted from 0; or which ones: 0, or 0-4."
        ),
    ] = "1",
    methods: SomeMethods = None,
    out: Results = RESULTS,
    runs: Runs = RUNS,
    workers: ParallelRuns = None,
    other_commit: OtherCommitOption = "refuse",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the runs that would be played.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run experiments of the paper, and write their numbers.

    A run that several experiments need is played once. Ctrl-C keeps what is finished, and the same command
    goes on from there.
    """
    from ipfl.reproduce.experiments import experiment_names, read_experiment
    from ipfl.reproduce.reproduction import PlayOptions, reproduce

    wanted = experiment_names() if names == ["all"] else list(dict.fromkeys(names))
    experiments = [read_experiment(name) for name in wanted]
    with run_observers(quiet) as make_observer:
        options = PlayOptions(runs, out, workers, other_commit, make_observer, dry_run)
        outcome = reproduce(experiments, scale, _read_seeds(seeds, 0), options, _method_labels(methods))
    for title in outcome.missing:
        typer.echo(title)
    if not quiet and not dry_run:
        _print_tables(wanted, scale, out)
    _finish(outcome)


@app.command(epilog="For example:\n\nipfl reproduce tune emnist-accuracy --scale cpu --seeds 2")
def tune(
    name: Annotated[str, typer.Argument(metavar="NAME", help="See `ipfl reproduce list`.")],
    scale: ScaleOption = "cpu",
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N|A,B|A-B", help="How many, counted from 100; or which ones.")
    ] = "1",
    methods: SomeMethods = None,
    out: Results = RESULTS,
    runs: Runs = RUNS,
    workers: ParallelRuns = None,
    other_commit: OtherCommitOption = "refuse",
    quiet: Quiet = False,
) -> None:
    """Tune every method of an experiment on the same grid, and write down the best settings.

    Learning rate × the method's main parameter, chosen on points that no method is tested on, with seeds that
    no table uses. Later runs of the experiment take what was chosen.
    """
    from ipfl.reproduce.experiments import read_experiment
    from ipfl.reproduce.reproduction import PlayOptions
    from ipfl.reproduce.reproduction import tune as tune_methods
    from ipfl.reproduce.tuning import FIRST_SEED

    with run_observers(quiet) as make_observer:
        options = PlayOptions(runs, out, workers, other_commit, make_observer)
        tuned_on = _read_seeds(seeds, FIRST_SEED)
        outcome = tune_methods(read_experiment(name), scale, tuned_on, options, _method_labels(methods))
    _finish(outcome)


@app.command("list")
def list_experiments(out: Results = RESULTS) -> None:
    """List all experiments: the tables and figures of the paper, and what its text describes.

    Also which of them have results, with how many seeds.
    """
    from ipfl.report.result_tables import plain_table
    from ipfl.reproduce.experiments import experiment_names, read_experiment
    from ipfl.reproduce.results_file import seeds_by_scale

    table = plain_table("name", "what it shows", "runs a seed", "results", right=["runs a seed"])
    for name in experiment_names():
        one = read_experiment(name)
        count = len(one.columns) * len(one.labels)
        there = ", ".join(
            f"{scale}: {len(seeds)} seeds" for scale, seeds in seeds_by_scale(out, name).items()
        )
        table.add_row(name, one.title, str(count), there or "–")
    stdout_console().print(table)


@app.command()
def tables(
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Folder with the numbers, NAME/SCALE.json.")
    ] = RESULTS,
    document: Annotated[
        Path,
        typer.Option(
            "--document",
            metavar="FILE.md",
            help="Document that the tables are written into, between its two marks.",
        ),
    ] = Path("docs/results.md"),
    scale: ScaleOption = "cpu",
) -> None:
    """Write the tables of all experiments into a document, beside the printed numbers."""
    from ipfl.reproduce.paper_tables import write_document

    for file in write_document(document, results, scale):
        typer.echo(file)


def _print_tables(names: list[str], scale: str, out: Path) -> None:
    from ipfl.reproduce.experiments import read_experiment
    from ipfl.reproduce.paper_tables import terminal_tables
    from ipfl.reproduce.results_file import read_experiment_record

    console = stdout_console()
    for name in names:
        record = read_experiment_record(out, name, scale)
        if record is not None:
            for table in terminal_tables(read_experiment(name), record):
                console.print()
                console.print(table)


def _finish(outcome: ReproductionOutcome) -> None:
    """Says what was written and what failed."""
    for file in outcome.files:
        typer.echo(file)
    for note in outcome.notes:
        typer.echo(note, err=True)
    for failure in outcome.failures:
        typer.echo(f"error: {failure}", err=True)
    if outcome.is_interrupted:
        exit_with_error("interrupted; the same command goes on from here", INTERRUPTED)
    if outcome.failures:
        raise typer.Exit(FAILED)
