"""The command line. Only typer is imported up here: `ipfl --help` must answer at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipfl.cli.deploy import app as deploy_app
from ipfl.cli.ledger import app as ledger_app
from ipfl.cli.options import (
    CheckpointEvery,
    ConfigFile,
    DataDir,
    EngineName,
    Fp16,
    Nodes,
    Out,
    Overwrite,
    Quiet,
    Resume,
    Seed,
    Sets,
    ShowConfig,
    Store,
    Workers,
    engine,
    free_folder,
    load,
    resumed,
    watcher,
)
from ipfl.cli.outcome import INTERRUPTED, Commands, complain
from ipfl.methods import DEFAULT, METHODS, REFERENCE

if TYPE_CHECKING:
    from rich.console import Console

    from ipfl.runs.comparison import Comparison


def _examples(*lines: str) -> str:
    return "\n\n".join(["For example:", *lines])


BOTH = ",".join(dict.fromkeys([DEFAULT, REFERENCE]))

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_examples(
        "ipfl run", "ipfl run --show-config > my.toml", f"ipfl compare --methods {BOTH} --seeds 3"
    ),
)
data_app = typer.Typer(no_args_is_help=True, help="Download data sets, and see where they are.")
app.add_typer(data_app, name="data")
app.add_typer(ledger_app, name="ledger")
app.add_typer(deploy_app, name="deploy")


def _version(wanted: bool) -> None:
    if wanted:
        from ipfl import __version__

        typer.echo(f"ipfl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Incentivized and personalized federated learning (IP-FL), and the methods it is compared with."""


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


@app.command(
    epilog=_examples(
        "ipfl run my.toml --out runs/mine",
        f"ipfl run --set method.name={REFERENCE} --set rounds=50",
        "ipfl run --engine flower --nodes 5",
    )
)
def run(
    config: ConfigFile = None,
    sets: Sets = None,
    out: Out = None,
    engine_name: EngineName = "local",
    nodes: Nodes = None,
    fp16: Fp16 = False,
    workers: Workers = None,
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    resume: Resume = None,
    store: Store = None,
    checkpoint_every: CheckpointEvery = 1,
    show_config: ShowConfig = False,
    data_dir: DataDir = None,
) -> None:
    """Run one method on one task.

    CONFIG.toml holds the settings; without it, the default run.
    Writes summary.json, metrics.jsonl (a line a round), model/*.safetensors, run.db (the ledger).
    Ctrl-C keeps what is finished; --resume goes on from there, with the same result.
    """
    if resume is None:
        settings = load(config, sets, seed, data_dir)
    elif config or sets or out or overwrite or seed is not None:
        complain("--resume keeps the settings of the run: no config, --set, --seed, --out or --overwrite", 2)
    else:
        settings = resumed(resume, store, data_dir)
    method = settings.build_method()
    if show_config:
        from ipfl.report.settings import show_config as shown

        typer.echo(shown(settings, [method]), nl=False)
        return
    from ipfl.runs.comparison import prepare
    from ipfl.runs.folder import RunOutput
    from ipfl.runs.run import run as run_method

    make_engine = engine(engine_name, settings, nodes, workers, fp16, quiet)
    task = prepare(settings, [method], settings.seed)
    folder = resume or out or free_folder(f"{method.name}-seed-{settings.seed}")
    watch = watcher(quiet)
    result = run_method(
        task,
        method,
        settings,
        engine=make_engine,
        out=RunOutput(folder, overwrite, resume is not None, store, checkpoint_every),
        observer=watch(method.name, 1, 1) if watch else None,
    )
    if not quiet:
        from ipfl.report.tables import run_table

        console = _console()
        console.print()
        console.print(run_table(result.summary))
        console.print(f"\nResults in {folder}", markup=False, soft_wrap=True)
    if result.summary["interrupted"]:
        rounds = result.summary["rounds"]
        complain(
            f"interrupted after {rounds} of {settings.rounds} rounds; results so far in {folder}", INTERRUPTED
        )


def _show(comparison: Comparison, folder: Path) -> None:
    """Prints the table of a comparison, how to read it, and where its files are."""
    from ipfl.report.tables import comparison_notes, comparison_table

    console = _console()
    console.print()
    console.print(comparison_table(comparison))
    for note in comparison_notes(comparison):
        console.print(note, markup=False, style="dim")
    files = [name for name in ("compare.json", "convergence.png", "pma.png") if (folder / name).exists()]
    console.print(f"\nResults in {folder}: {', '.join(files)}", markup=False, soft_wrap=True)


@app.command(
    epilog=_examples(
        f"ipfl compare --methods {BOTH} --seeds 3 --out runs/mine",
        f"ipfl compare my.toml --methods {BOTH} --set task.partition=30:70",
    )
)
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", metavar="A,B,…", help="Methods to compare, see `ipfl methods`; default: all."
        ),
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, from the config's on.")] = 1,
    sets: Sets = None,
    out: Out = None,
    workers: Workers = None,
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    resume: Resume = None,
    show_config: ShowConfig = False,
    data_dir: DataDir = None,
) -> None:
    """Run several methods on the same task, budget and seeds.

    CONFIG.toml holds the settings; without it, those of the default run.
    Writes METHOD/seed-S/ for each run, compare.json, convergence.png, pma.png.
    The reference always takes part: PMA is what a client gains over it.
    Ctrl-C keeps what is finished; --resume goes on from there, with the same result.
    """
    if resume is None:
        settings = load(config, sets, seed, data_dir)
        names = [name.strip() for name in methods.split(",") if name.strip()] or list(METHODS)
        numbers = list(range(settings.seed, settings.seed + seeds))
    elif config or methods or seeds > 1 or sets or out or overwrite or seed is not None:
        complain(
            "--resume keeps what was set: no config, --methods, --seeds, --set, --seed, --out or --overwrite",
            2,
        )
    else:
        from ipfl.runs.comparison import read_plan

        settings, names, numbers = read_plan(resume)
    if show_config:
        from ipfl.report.settings import show_config as shown

        typer.echo(shown(settings, list(settings.build_methods(names).values())), nl=False)
        return
    from ipfl.runs.comparison import compare as compare_methods

    folder = resume or out or free_folder("compare")
    comparison = compare_methods(
        settings,
        names,
        numbers,
        out=folder,
        overwrite=overwrite,
        resume=resume is not None,
        workers=workers,
        watch=watcher(quiet),
    )
    if not quiet:
        _show(comparison, folder)
    for entry in comparison.entries.values():
        for number, why in entry.failures.items():
            typer.echo(f"error: {entry.method.name}, seed {number}: {why}", err=True)
    if comparison.interrupted:
        complain(f"interrupted; results so far in {folder}", INTERRUPTED)
    if comparison.failed:
        raise typer.Exit(1)


@app.command(epilog=_examples("ipfl personalize runs/mine --data my-points.npz --out my-model.safetensors"))
def personalize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    data: Annotated[
        Path,
        typer.Option(
            "--data", help="Your points: an .npz file with x and y, and x_test and y_test if wanted."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the model goes, a .safetensors file.")],
    overwrite: Overwrite = False,
) -> None:
    """Get a personalized model from a finished run, without training.

    RUN is the folder that `ipfl run` wrote. The points in --data say what the model should be good at:
    x in the shape of the run's data, y the labels. With x_test and y_test, the accuracy there is printed.
    """
    from ipfl.cli.personal import write_personal_model

    write_personal_model(run, data, out, overwrite=overwrite, say=typer.echo)


@app.command(epilog=_examples(f"ipfl methods {REFERENCE}"))
def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
) -> None:
    """List the methods; with NAME, the hyper-parameters of that one."""
    from ipfl.report.tables import method_table, methods_table

    if name is None:
        _console().print(methods_table())
        return
    from ipfl.methods import method_class
    from ipfl.report.settings import hyperparameters

    kind = method_class(name)
    console = _console()
    console.print(f"{name}: {kind.summary}", markup=False)
    fields = hyperparameters(name)
    if fields:
        console.print(method_table(fields))
        console.print(
            f"Set one with: ipfl run --set method.name={name} --set method.{fields[0].name}=…", markup=False
        )
    else:
        console.print(
            "It has no hyper-parameters of its own; those of training are in [train].", markup=False
        )


@app.command()
def datasets(data_dir: DataDir = None) -> None:
    """List the data sets."""
    from ipfl.report.tables import datasets_table

    _console().print(datasets_table(data_dir))


@app.command()
def partitions() -> None:
    """List hidden distributions and partitions over clients."""
    from ipfl.data import DISTRIBUTIONS, PARTITIONS
    from ipfl.report.tables import words_table

    console = _console()
    console.print(words_table("task.distributions", DISTRIBUTIONS))
    console.print(words_table("task.partition", PARTITIONS))


@data_app.command("fetch", epilog=_examples("ipfl data fetch cifar10"))
def data_fetch(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Download the original of a data set into the cache, and check it.

    NAME is one of `ipfl datasets`.
    """
    from ipfl.data import fetch

    paths = fetch(name)
    for path in paths:
        typer.echo(path)
    if not paths:
        typer.echo(f"{name} is bundled: nothing to download")


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """Show where each data set is, where it comes from, under which licence."""
    from ipfl.report.tables import places

    for line in places(data_dir):
        typer.echo(line)


def main() -> None:
    """Entry point of the `ipfl` command."""
    app()
