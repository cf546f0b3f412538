"""`ipfl run` and `ipfl compare`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipfl.cli.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, exit_with_error
from ipfl.cli.options import (
    MAX_SEEDS,
    AccountsName,
    Anchor,
    CheckpointEvery,
    ClientCount,
    CompareEngineName,
    ConfigFile,
    DataDir,
    DatasetName,
    EngineName,
    Fp16,
    Json,
    KeepModels,
    MethodName,
    NodeCount,
    Out,
    Overwrite,
    ParallelRuns,
    Profiled,
    Quiet,
    Resume,
    RoundCount,
    Seed,
    Sets,
    ShowConfig,
    SigningKeyFile,
    Store,
    Track,
    Trust,
    Workers,
    allow_code,
    choose_engine,
    choose_pool,
    comparison_observers,
    load_config,
    new_run_folder,
    print_json,
    resumed_config,
    run_observer,
    stdout_console,
)
from ipfl.methods import METHODS, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipfl.config.run_config import Config
    from ipfl.core import Method
    from ipfl.core.profile import Profile
    from ipfl.play.tracking import TrackerName
    from ipfl.study.comparison import Comparison

MethodNames = Annotated[
    str | None,
    typer.Option("--methods", metavar="A,B,…", help="Methods to compare, see `ipfl methods`; default: all."),
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
        "--seeds", metavar="N", min=1, max=MAX_SEEDS, help="Number of seeds; the first is the config's."
    ),
]


def run(
    config: ConfigFile = None,
    method_name: MethodName = None,
    rounds: RoundCount = None,
    clients: ClientCount = None,
    dataset: DatasetName = None,
    sets: Sets = None,
    out: Out = None,
    engine_name: EngineName = "local",
    nodes: NodeCount = None,
    fp16: Fp16 = False,
    workers: Workers = None,
    seed: Seed = None,
    quiet: Quiet = False,
    as_json: Json = False,
    overwrite: Overwrite = False,
    resume: Resume = None,
    store: Store = None,
    checkpoint_every: CheckpointEvery = 1,
    signing_key: SigningKeyFile = None,
    anchor: Anchor = None,
    accounts: AccountsName = None,
    keep_models: KeepModels = True,
    track: Track = None,
    profiled: Profiled = False,
    show_config: ShowConfig = False,
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Run one method on one task.

    CONFIG.toml holds the settings; without it, the default run.
    Writes summary.json, metrics.jsonl (a line a round), model/*.safetensors, run.db (the ledger).
    Ctrl-C keeps what is finished; --resume goes on from there, with the same result; with --rounds, also
    beyond the rounds that it was begun with.
    """
    if resume is None:
        settings = load_config(
            config, sets, seed, data_dir, method=method_name, rounds=rounds, clients=clients, dataset=dataset
        )
    elif any((config, sets, out, overwrite, accounts, method_name, clients, dataset)) or seed is not None:
        refused = "no config, --set, --seed, --method, --clients, --dataset, --out, --accounts or --overwrite"
        exit_with_error(f"--resume keeps the settings of the run: {refused}", BAD_INPUT)
    else:
        settings = resumed_config(resume, store, data_dir, trust, rounds)
    method = settings.build_method()
    if show_config:
        _print_config(settings, [method])
        return
    from ipfl.core.profile import Profile, measure
    from ipfl.data.federated import notes
    from ipfl.keep.run_folder import RunOutput
    from ipfl.play.run import run as run_method
    from ipfl.study.comparison import prepare

    engine = choose_engine(engine_name, settings, nodes, workers, fp16, quiet)
    folder = resume or out or new_run_folder(f"{method.name}-seed-{settings.seed}")
    observer, tracker = run_observer(quiet, method.name), None
    if track is not None:
        from ipfl.play.tracking import ObserverGroup, make_tracker

        tracker = make_tracker(track, folder, settings.record([method]), is_resumed=resume is not None)
        observer = ObserverGroup([one for one in (observer, tracker) if one is not None])
    profile = Profile()
    with profile.recording() if profiled else nullcontext():
        with measure("data"):
            task = prepare(settings, [method], settings.seed)
        for note in () if quiet else notes(task.data):
            typer.echo(note, err=True)
        result = run_method(
            task,
            method,
            settings,
            engine=engine,
            out=RunOutput(
                folder,
                overwrite=overwrite,
                resume=resume is not None,
                store=store,
                checkpoint_every=checkpoint_every,
                signing_key=signing_key,
                anchor=anchor,
                accounts=accounts,
                keep_models=keep_models,
            ),
            observer=observer,
        )
    if tracker is not None:
        tracker.end(result.summary)
    if as_json:
        print_json({"folder": str(folder), **result.summary})
    elif not quiet:
        _print_run(result.summary, folder)
    if profiled:
        _report_profile(profile, folder, is_printed=not as_json)
    if result.summary["interrupted"]:
        progress = f"{result.summary['rounds']} of {settings.rounds} rounds"
        exit_with_error(f"interrupted after {progress}; results so far in {folder}", INTERRUPTED)
    if not result.summary["counted"]:
        from ipfl.results.result import NO_ROUND_COUNTED

        exit_with_error(f"{NO_ROUND_COUNTED}; see {folder}", FAILED)


def compare(
    config: ConfigFile = None,
    methods: MethodNames = None,
    rounds: RoundCount = None,
    clients: ClientCount = None,
    dataset: DatasetName = None,
    reference: ReferenceName = REFERENCE,
    seeds: SeedCount = 1,
    sets: Sets = None,
    out: Out = None,
    engine_name: CompareEngineName = "local",
    workers: ParallelRuns = None,
    seed: Seed = None,
    quiet: Quiet = False,
    as_json: Json = False,
    overwrite: Overwrite = False,
    resume: Resume = None,
    track: Track = None,
    show_config: ShowConfig = False,
    data_dir: DataDir = None,
    trust: Trust = False,
) -> None:
    """Run several methods on the same task, budget and seeds.

    CONFIG.toml holds the settings; without it, those of the default run.
    Writes METHOD/seed-S/ for each run, compare.json, and plots as PNG and PDF.
    A variant is METHOD:KEY=VALUE. The reference always takes part: PMA is what a client gains over it.
    Ctrl-C keeps what is finished; --resume goes on from there, with the same result.
    """
    if resume is None:
        settings = load_config(config, sets, seed, data_dir, rounds=rounds, clients=clients, dataset=dataset)
        names = (
            list(METHODS) if methods is None else [one.strip() for one in methods.split(",") if one.strip()]
        )
        if not names:
            exit_with_error("--methods names no method", BAD_INPUT)
        numbers = list(range(settings.seed, settings.seed + seeds))
    elif (
        any((config, methods, sets, out, overwrite, rounds, clients, dataset))
        or reference != REFERENCE
        or seeds > 1
        or seed is not None
    ):
        refused = (
            "no config, --methods, --reference, --seeds, --set, --seed, --rounds, --clients, --dataset, "
        )
        exit_with_error(f"--resume keeps what was set: {refused}--out or --overwrite", BAD_INPUT)
    else:
        from ipfl.study.comparison import read_plan

        settings, names, numbers, reference = read_plan(resume)
        allow_code(settings, [*names, reference], resume, trust)
    if show_config:
        _print_config(settings, settings.build_methods(names).values())
        return
    from ipfl.report.figure_list import save_comparison_figures
    from ipfl.report.run_set import of_comparison
    from ipfl.study.comparison import compare as compare_methods

    folder = resume or out or new_run_folder("compare")
    pool = choose_pool(engine_name, workers, quiet)
    with comparison_observers(quiet) as make_observer:
        comparison = compare_methods(
            settings,
            names,
            numbers,
            reference=reference,
            out=folder,
            overwrite=overwrite,
            resume=resume is not None,
            make_observer=make_observer,
            make_pool=pool,
        )
    save_comparison_figures(of_comparison(comparison), folder)
    if track is not None:
        _track_runs(track, comparison, folder)
    if as_json:
        print_json({"folder": str(folder), **comparison.summary()})
    elif not quiet:
        _print_comparison(comparison, folder)
    for entry in comparison.entries.values():
        for number, reason in entry.failures.items():
            typer.echo(f"error: {entry.method.name}, seed {number}: {reason}", err=True)
    if comparison.interrupted:
        exit_with_error(f"interrupted; results so far in {folder}", INTERRUPTED)
    void = [f"{e.method.name}, seed {s}" for e in comparison.entries.values() for s in e.void_seeds]
    if void:
        from ipfl.results.result import NO_ROUND_COUNTED
    for run in void:
        typer.echo(f"error: {run}: {NO_ROUND_COUNTED}", err=True)
    if comparison.failed or void:
        raise typer.Exit(FAILED)


def _track_runs(track: TrackerName, comparison: Comparison, folder: Path) -> None:
    """Tells a tracker about the finished runs of a comparison, whose PMA is known then."""
    from ipfl.play.tracking import track_result
    from ipfl.study.method_labels import folder_names

    names = folder_names(comparison.entries)
    for label, entry in comparison.entries.items():
        for seed, result in entry.results.items():
            track_result(track, folder / names[label] / f"seed-{seed}", result, top=folder)


def _print_config(config: Config, methods: Iterable[Method[Any]]) -> None:
    from ipfl.report.config_text import commented_toml

    typer.echo(commented_toml(config, list(methods)), nl=False)


def _print_run(summary: Mapping[str, Any], folder: Path) -> None:
    from ipfl.report.result_tables import run_table

    console = stdout_console()
    console.print()
    console.print(run_table(summary))
    console.print(f"\nResults in {folder}", markup=False, soft_wrap=True)


def _report_profile(profile: Profile, folder: Path, *, is_printed: bool) -> None:
    """Writes the trace, and prints where the time went."""
    from ipfl.keep.file_names import TRACE_FILE
    from ipfl.report.run_tables import profile_table
    from ipfl.system.files import write_json

    write_json(folder / TRACE_FILE, profile.trace())
    if not is_printed:
        return
    console = stdout_console()
    console.print()
    console.print(profile_table(profile))
    console.print(
        f"\nTrace in {folder / TRACE_FILE}: open it at https://ui.perfetto.dev", markup=False, soft_wrap=True
    )


def _print_comparison(comparison: Comparison, folder: Path) -> None:
    """Prints the table of a comparison, how to read it, and where its files are."""
    from ipfl.keep.file_names import PLAN_FILE
    from ipfl.report.result_tables import comparison_notes, comparison_table
    from ipfl.study.comparison_folder import comparison_files

    console = stdout_console()
    console.print()
    console.print(comparison_table(comparison))
    for note in comparison_notes(comparison):
        console.print(note, markup=False, style="dim")
    shown = [file for file in comparison_files(folder) if file.name != PLAN_FILE and file.suffix != ".pdf"]
    names = ", ".join(file.name for file in shown if file.exists())
    console.print(f"\nResults in {folder}: {names}", markup=False, soft_wrap=True)
