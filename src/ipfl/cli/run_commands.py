"""`ipfl run` and `ipfl compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource

from ipfl.cli import options
from ipfl.cli.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, exit_with_error
from ipfl.methods import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipfl.config.whole_config import Config
    from ipfl.core import Method
    from ipfl.engines import EngineFactory
    from ipfl.keep.run_folder import RunOutput
    from ipfl.play.tracking import TrackerName
    from ipfl.results.result import Result
    from ipfl.study.comparison import Comparison

RUN_SETTINGS = ("config", "sets", "seed", "method_name", "clients", "dataset", "out", "accounts", "overwrite")
"""Parameters that belong to the beginning of a run."""
MethodNames = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,…",
        help="Methods to compare, see `ipfl methods`; default: all that suit the task.",
    ),
]
ReferenceName = Annotated[
    str,
    typer.Option(
        "--reference", metavar="METHOD", help="Method that gains (PMA) are measured against, such as local."
    ),
]
SeedCount = Annotated[
    int,
    typer.Option(
        "--seeds",
        metavar="N",
        min=1,
        max=options.MAX_SEEDS,
        help="Number of seeds; the first is the config's.",
    ),
]


def run(
    context: typer.Context,
    config: options.ConfigFile = None,
    method_name: options.MethodName = None,
    rounds: options.RoundCount = None,
    clients: options.ClientCount = None,
    dataset: options.DatasetName = None,
    sets: options.Sets = None,
    out: options.Out = None,
    engine_name: options.EngineName = "local",
    workers: options.Workers = None,
    seed: options.Seed = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    overwrite: options.Overwrite = False,
    resume: options.Resume = None,
    signing_key: options.SigningKeyFile = None,
    accounts: options.AccountsName = None,
    keep_models: options.KeepModels = True,
    track: options.Track = None,
    show_config: options.ShowConfig = False,
    trust: options.Trust = False,
) -> None:
    """Run one method on one task.

    CONFIG.toml holds the settings; without it, the default run.
    Writes summary.json, metrics.jsonl (a line a round), model/*.safetensors, run.db (the ledger).
    Ctrl-C keeps what is finished; --resume goes on from there with the same result, --rounds beyond its end.
    """
    if resume is None:
        short = {"method": method_name, "clients": clients, "dataset": dataset}
        settings = options.load_config(config, sets, seed=seed, rounds=rounds, **short)
    else:
        _refuse_settings(context, *RUN_SETTINGS)
        settings = options.resumed_config(resume, trust, rounds)
    method = settings.build_method()
    if show_config:
        from ipfl.report.config_text import commented_toml

        typer.echo(commented_toml(settings), nl=False)
        return
    from ipfl.keep.run_folder import RunOutput

    engine = options.choose_engine(engine_name, settings, workers)
    folder = resume or out or options.new_run_folder(f"{settings.row_name(method)}-seed-{settings.seed}")
    output = RunOutput(
        folder,
        overwrite=overwrite,
        resume=resume is not None,
        signing_key=signing_key,
        accounts=accounts,
        keep_models=keep_models,
    )
    result = _play(settings, method, engine, output, track, quiet)
    _tell_run(result.summary, settings, folder, as_json=as_json, quiet=quiet)


def _refuse_settings(context: typer.Context, *names: str) -> None:
    """Refuses options that a run which goes on has from its folder."""
    known = {one.name: one for one in context.command.params}
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            given = known[name]
            what = given.opts[0] if given.param_type_name == "option" else "CONFIG.toml"
            exit_with_error(f"--resume keeps the settings: {what} cannot change them", BAD_INPUT)


def _play(
    settings: Config,
    method: Method[Any],
    engine: EngineFactory,
    output: RunOutput,
    track: TrackerName | None,
    quiet: bool,
) -> Result:
    """Makes the task and plays the run, told to whom it may concern."""
    from ipfl.play.run import run as run_method
    from ipfl.training.task import Task

    tracker = None
    task = Task.build(settings.task, settings.seed)
    for note in () if quiet else task.data.notes:
        typer.echo(note, err=True)
    with options.run_observers(quiet) as make_observer:
        observer = None if make_observer is None else make_observer(settings.row_name(method), 1, 1)
        if track is not None:
            from ipfl.play.tracking import ObserverGroup, make_tracker

            folder = Path(output.path)
            tracker = make_tracker(track, folder, settings.record([method]), is_resumed=output.resume)
            observer = ObserverGroup([one for one in (observer, tracker) if one is not None])
        result = run_method(task, method, settings, engine=engine, out=output, observer=observer)
    if tracker is not None:
        tracker.end(result.summary)
    return result


def _tell_run(
    summary: Mapping[str, Any],
    settings: Config,
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Prints what a run found, and ends with an error if it is not whole."""
    if as_json:
        options.print_json({"folder": str(folder), **summary})
    elif not quiet:
        from ipfl.report.result_tables import run_table

        console = options.stdout_console()
        console.print()
        console.print(run_table(summary))
        console.print(f"\nResults in {folder}", markup=False, soft_wrap=True)
    if summary["interrupted"]:
        progress = f"{summary['rounds']} of {settings.rounds} rounds"
        exit_with_error(f"interrupted after {progress}; results so far in {folder}", INTERRUPTED)
    if not summary["counted"]:
        from ipfl.results.result import NO_ROUND_COUNTED

        exit_with_error(f"{NO_ROUND_COUNTED}; see {folder}", FAILED)


def compare(
    context: typer.Context,
    config: options.ConfigFile = None,
    methods: MethodNames = None,
    rounds: options.RoundCount = None,
    clients: options.ClientCount = None,
    dataset: options.DatasetName = None,
    reference: ReferenceName = REFERENCE,
    seeds: SeedCount = 1,
    sets: options.Sets = None,
    out: options.Out = None,
    engine_name: options.CompareEngineName = "local",
    workers: options.ParallelRuns = None,
    seed: options.Seed = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    overwrite: options.Overwrite = False,
    resume: options.Resume = None,
    track: options.Track = None,
    trust: options.Trust = False,
) -> None:
    """Run several methods on the same task, budget and seeds.

    CONFIG.toml holds the settings; without it, those of the default run.
    Writes METHOD/seed-S/ for each run, and compare.json; `ipfl report` makes a page of them.
    A variant is METHOD:KEY=VALUE. The reference always takes part: PMA is what a client gains over it.
    Ctrl-C keeps what is finished; --resume goes on from there, with the same result.
    """
    if resume is None:
        settings = options.load_config(
            config, sets, seed=seed, rounds=rounds, clients=clients, dataset=dataset
        )
        names = _method_names(methods)
        numbers = list(range(settings.seed, settings.seed + seeds))
    else:
        from ipfl.study.comparison import read_plan

        _refuse_settings(context, *RUN_SETTINGS, "methods", "reference", "seeds", "rounds")
        settings, names, numbers, reference = read_plan(resume)
        options.allow_code(settings, [*names, reference], resume, trust)
    from ipfl.study.comparison import compare as compare_methods

    folder = resume or out or options.new_run_folder("compare")
    with options.run_observers(quiet) as make_observer:
        comparison = compare_methods(
            settings,
            names,
            numbers,
            reference=reference,
            out=folder,
            overwrite=overwrite,
            resume=resume is not None,
            make_observer=make_observer,
            make_pool=options.choose_pool(engine_name, workers, quiet),
        )
    _end_comparison(comparison, folder, track, as_json=as_json, quiet=quiet)


def _method_names(text: str | None) -> list[str] | None:
    """The methods of `A,B`; None: all."""
    names = None if text is None else [name for one in text.split(",") if (name := one.strip())]
    if names == []:
        exit_with_error("--methods names no method", BAD_INPUT)
    return names


def _track_comparison(comparison: Comparison, folder: Path, track: TrackerName) -> None:
    """Tells a tracker about the runs of a comparison, whose PMA is known now."""
    from ipfl.play.tracking import track_result
    from ipfl.study.method_labels import folder_names

    names = folder_names(comparison.entries)
    for label, entry in comparison.entries.items():
        for seed, result in entry.results.items():
            track_result(track, folder / names[label] / f"seed-{seed}", result, top=folder)


def _end_comparison(
    comparison: Comparison, folder: Path, track: TrackerName | None, *, as_json: bool, quiet: bool
) -> None:
    """Prints what a comparison found, and ends with an error if it is not whole."""
    from ipfl.results.result import NO_ROUND_COUNTED

    if track is not None:
        _track_comparison(comparison, folder, track)
    if as_json:
        options.print_json({"folder": str(folder), **comparison.summary()})
    elif not quiet:
        _print_comparison(comparison, folder)
    entries = comparison.entries.values()
    failures = [(one, seed, why) for one in entries for seed, why in one.failures.items()]
    void = [(one, seed, NO_ROUND_COUNTED) for one in entries for seed in one.void_seeds]
    for entry, seed, why in failures if comparison.interrupted else [*failures, *void]:
        typer.echo(f"error: {entry.method.name}, seed {seed}: {why}", err=True)
    if comparison.interrupted:
        exit_with_error(f"interrupted; results so far in {folder}", INTERRUPTED)
    if comparison.failed or void:
        raise typer.Exit(FAILED)


def _print_comparison(comparison: Comparison, folder: Path) -> None:
    """Prints the table of a comparison, how to read it, and where its files are."""
    from ipfl.report.result_tables import comparison_notes, comparison_table

    console = options.stdout_console()
    console.print()
    console.print(comparison_table(comparison))
    for note in comparison_notes(comparison):
        console.print(note, markup=False, style="dim")
    console.print(f"\nResults in {folder}; figures: ipfl report {folder}", markup=False, soft_wrap=True)
