"""Options that commands share, and what they stand for."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ipfl.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from ipfl.config.whole_config import Config
    from ipfl.engines import EngineFactory
    from ipfl.study.run_list import MakeObserver
    from ipfl.study.run_pool import MakePool

MAX_SEEDS = 100_000
"""Seeds of one comparison."""
MAX_WORKERS = 256
"""Processes that one command may start."""

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG.toml", help="Settings; `ipfl run --show-config` writes such a file."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one setting, such as task.partition=30:70. Repeatable."
    ),
]


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin so, for the shell's completion; without a summary, which would import torch."""
    from ipfl.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """Data sets that begin so, for the shell's completion."""
    from ipfl.data.catalogue import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


MethodName = Annotated[
    str | None,
    typer.Option(
        "--method", metavar="NAME", help="Same as --set method.name=NAME.", autocompletion=complete_method
    ),
]
RoundCount = Annotated[
    int | None, typer.Option("--rounds", min=1, metavar="R", help="Same as --set rounds=R.")
]
ClientCount = Annotated[
    int | None, typer.Option("--clients", min=1, metavar="N", help="Same as --set task.clients=N.")
]
DatasetName = Annotated[
    str | None,
    typer.Option(
        "--dataset", metavar="NAME", help="Same as --set task.dataset=NAME.", autocompletion=complete_dataset
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else on standard output.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the results; default: a new one in runs/."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=0,
        max=MAX_WORKERS,
        help="Worker processes; default one per core, 0 none. Changes no result.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="S", min=0, help="Same as --set seed=S.")]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="DIR",
        help="Continue what was begun in this folder, with the settings it was begun with.",
    ),
]
SigningKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--signing-key",
        metavar="FILE",
        envvar="IPFL_SIGNING_KEY",
        help="Key that signs the ledger, created if there is none; default: signing.key beside the folder.",
    ),
]
AccountsName = Annotated[
    str | None,
    typer.Option(
        "--accounts",
        metavar="NAME",
        help="Start with the balances that the last run of this name ended with; "
        "the next starts with this one's.",
    ),
]
KeepModels = Annotated[
    bool,
    typer.Option(
        "--keep-models/--no-keep-models",
        help="With data of your own: keep every client's model in the folder, up to 1 GB.",
    ),
]
EngineName = Annotated[
    Literal["local", "flower"],
    typer.Option(
        "--engine",
        help="local: worker processes; flower: Flower nodes, one after the other. The same result.",
    ),
]
CompareEngineName = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--engine",
        help="local: processes here; ray: Ray tasks, on the cluster of RAY_ADDRESS. The same result.",
    ),
]
ParallelRuns = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=0,
        max=MAX_WORKERS,
        help="Runs side by side; default one per core, 0: one after the other. Changes no result.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import code that the run's folder names: its method, data or model."),
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="MODULE:CALLABLE",
        help="The run's network, if it was made in a notebook or a script: where to find it now.",
    ),
]
Track = Annotated[
    Literal["tensorboard", "mlflow"] | None,
    typer.Option(
        "--track",
        help="Also write the figures for TensorBoard or MLflow, to a folder of that name beside the run's.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")]
ReplaceFiles = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print every setting as TOML with its meaning, and run nothing.")
]
SHORT_OPTIONS = {"method": "method.name", "clients": "task.clients", "dataset": "task.dataset"}
"""Options whose setting has a longer name."""


def load_config(path: Path | None, sets: list[str] | None, **short: str | int | None) -> Config:
    """The config that a command works with: the file, what --set says, then the options with a name."""
    from ipfl.config.whole_config import Config

    _allow_user_modules()
    given = {SHORT_OPTIONS.get(name, name): value for name, value in short.items()}
    return Config.load(path, sets or (), {key: value for key, value in given.items() if value is not None})


def resumed_config(folder: Path, trust: bool, rounds: int | None = None) -> Config:
    """The config of a run that is to go on; there may be more rounds.

    Args:
        folder: Of the run.
        trust: Whether code that the folder names may be imported.
        rounds: How many rounds there are to be; None: as it was.
    """
    from ipfl.config.whole_config import Config
    from ipfl.keep.journal import read_header
    from ipfl.keep.run_folder import is_on_nodes, planned_rounds

    header = read_header(folder)
    config = header.get("config")
    if is_on_nodes(folder):
        raise InputError(f"the run in {folder} runs on deployed nodes: ipfl deploy run DIR --resume {folder}")
    is_built_here = header.get("data_seed", header["seed"]) == header["seed"]
    if not isinstance(config, dict) or not isinstance(config.get("task"), dict) or not is_built_here:
        raise InputError(f"the run in {folder} was begun in Python: resume it there")
    # The header says what the run was begun with; an end in order, how far it was extended.
    config["rounds"] = rounds if rounds is not None else max(header["rounds"], planned_rounds(folder))
    settings = Config.of(config)
    allow_code(settings, [settings.method.name], folder, trust)
    return settings


def allow_code(settings: Config, methods: list[str], folder: Path, trust: bool) -> None:
    """Lets code that a folder of results names be imported, if the user trusts it; refuses it otherwise."""
    from ipfl.config.whole_config import method_name
    from ipfl.system.plugins import refuse_code

    if not trust:
        refuse_code([*map(method_name, methods), settings.model_dump(mode="json")], folder)
    _allow_user_modules()


def _allow_user_modules() -> None:
    """Lets a `module:callable` of the config, and what it imports, be files in the current folder.

    Reading a config file adds its own folder (`ipfl.system.plugins.look_beside`).
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def choose_engine(name: str, config: Config, workers: int | None) -> EngineFactory:
    """The engine, which moves the messages of a run."""
    if name == "local":
        from ipfl.engines.local_engine import local_engine

        return local_engine(workers)
    from ipfl.engines.flower import require_flower

    require_flower()
    from ipfl.engines.flower.simulation import simulation_engine

    return simulation_engine(config.task)


def choose_pool(name: str, workers: int | None, quiet: bool) -> MakePool:
    """The pool that plays the runs of a comparison."""
    if name == "local":
        from ipfl.study.run_pool import local_pool

        return local_pool(workers)
    if workers == 0:
        raise InputError("--engine ray needs at least one worker")
    from ipfl.study.ray_runs import ray_pool

    return ray_pool(workers, print_line=lambda line: None if quiet else typer.echo(line, err=True))


def new_run_folder(name: str) -> Path:
    """A folder in runs/ that is not there yet: name, name-2 and so on."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def run_observers(quiet: bool) -> AbstractContextManager[MakeObserver | None]:
    """The observers that show runs on stderr; None: nothing is shown."""
    if quiet:
        return nullcontext()
    from ipfl.report.progress import RunsProgress

    return RunsProgress()


def print_json(content: Any) -> None:
    """Prints a result for scripts."""
    import json

    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def stdout_console() -> Console:
    """The console for tables."""
    from rich.console import Console

    return Console(highlight=False)
