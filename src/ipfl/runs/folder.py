"""The files of a run: `summary.json`, `metrics.jsonl` (a line a round), `model/*.safetensors`.

`offer.safetensors` is what the server would send to a new client, for `ipfl personalize`; `predictors/` what
clients predict with, if their data cannot be found again; `run.db` the store with the ledger;
`checkpoint/`, `memory/` and `client_models/` what a resumed run starts from.
`trace.json` says where the time went (`ipfl run --profile`).

Everything in `metrics.jsonl` and `model/` depends on config and
seed alone, so equal runs give equal bytes; times are in `summary.json` only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ipfl.client.network import Network
from ipfl.core import Record, Vector
from ipfl.core.files import system_errors, write_json, write_record, write_text
from ipfl.engines import ATTEMPTS_FILE
from ipfl.errors import InputError
from ipfl.ledger.database import STORE_FILE

SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
SERVER_MODELS = "model"
MEMORY = "memory"
CLIENT_MODELS = "client_models"
OFFER = "offer.safetensors"
CHECKPOINTS = "checkpoint"
TRACE = "trace.json"
PREDICTORS = "predictors"
PLAN = "plan.json"
"""In the folder of a comparison: what it was begun with; there from its start on, for a resume."""


@lru_cache
def source_commit() -> str | None:
    """Commit of the source tree that is running; None for an installed package."""
    here = Path(__file__).resolve().parent
    done = subprocess.run(
        ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ) if shutil.which("git") else None  # fmt: skip
    return done.stdout.strip() if done and done.returncode == 0 else None


def is_on_nodes(folder: Path) -> bool:
    """Whether a run was begun on deployed nodes, which hold its data and what clients remember."""
    try:
        return bool(json.loads((folder / ATTEMPTS_FILE).read_text()).get("deployed"))
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class RunOutput:
    """Where a run is kept, and how it is begun there."""

    path: Path | str
    """Its folder."""
    overwrite: bool = False
    """Replace a run that the folder holds."""
    resume: bool = False
    """Go on with the run that the folder holds; everything else must be as it was. The result is the same to
    the last bit as without the interruption."""
    store: str | None = None
    """URL of a database for rounds and ledger; None for `run.db` in the folder."""
    checkpoint_every: int = 1
    """Rounds between checkpoints, from which a run can be resumed."""
    signing_key: Path | None = None
    """File with the key that signs the ledger, made if it is missing; None: `signing.key` beside `path`."""
    anchor: Path | None = None
    """A file elsewhere that gets the newest hash after every round; None: there is none."""
    accounts: str | None = None
    """Name under which balances outlive runs: this one opens with what the last left; None: they do not."""


class RunFolder:
    """Writes one run. Refuses a folder that holds a run already, unless told to overwrite it.

    Nothing is written before `open`, so that whatever else refuses to start leaves no trace.
    """

    def __init__(self, output: RunOutput):
        self.path = path = Path(output.path)
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file, not a folder for results")
        if not (output.overwrite or output.resume) and any(
            (path / name).exists() for name in (METRICS, SUMMARY, STORE_FILE)
        ):
            raise InputError(f"{path} already holds a run: overwrite it, resume it, or choose another folder")

    def open(self) -> None:
        """Makes the folder, and removes what an earlier run left there."""
        for folder in (SERVER_MODELS, MEMORY, CLIENT_MODELS, CHECKPOINTS, PREDICTORS):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for old in (
                SUMMARY,
                OFFER,
                TRACE,
                ATTEMPTS_FILE,
                STORE_FILE,
                f"{STORE_FILE}-wal",
                f"{STORE_FILE}-shm",
            ):
                (self.path / old).unlink(missing_ok=True)
            (self.path / METRICS).write_text("")
        except OSError as error:
            raise InputError(f"cannot write results to {self.path}: {error.strerror}") from error

    @property
    def memory(self) -> Path:
        """Where clients keep what they remember."""
        return self.path / MEMORY

    @property
    def client_models(self) -> Path:
        """Where the server keeps models of single clients."""
        return self.path / CLIENT_MODELS

    @property
    def predictors(self) -> Path:
        """Where it is kept what clients predict with."""
        return self.path / PREDICTORS

    @property
    def checkpoints(self) -> Path:
        """Where the state after the last rounds is kept."""
        return self.path / CHECKPOINTS

    def seconds(self) -> float:
        """What an earlier process spent on the run, if it ended in order."""
        try:
            return float(json.loads((self.path / SUMMARY).read_text())["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    def rewrite(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Makes `metrics.jsonl` say these rounds and no others."""
        write_text(self.path / METRICS, "".join(map(line_text, lines)))

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Appends one round to `metrics.jsonl`."""
        with (self.path / METRICS).open("ab", buffering=0) as file:
            _append(file, line_text(line).encode())

    def write_offer(self, offer: Record) -> None:
        """Keeps what the server would send to a new client."""
        write_record(self.path / OFFER, offer)

    def write_models(self, models: Mapping[str, Vector], network: Network) -> None:
        """Writes every server model with the tensor names and shapes of its module."""
        (self.path / SERVER_MODELS).mkdir(exist_ok=True)
        for name, vector in models.items():
            path = self.path / SERVER_MODELS / f"{name}.safetensors"
            with system_errors(path):
                save_file(network.state_dict(vector), path)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json` whole or not at all."""
        write_json(self.path / SUMMARY, summary)


def _append(file: FileIO, content: bytes) -> None:
    """Adds to the end of a file all or nothing."""
    end = file.seek(0, os.SEEK_END)
    try:
        while content:  # a nearly full disk takes a part
            content = content[file.write(content) or 0 :]
    except OSError:
        with suppress(OSError):  # what comes first is what went wrong first
            file.truncate(end)
        raise


def line_text(line: Mapping[str, Any]) -> str:
    """A line of `metrics.jsonl`: the round first, then all in order, so that equal lines are equal bytes."""
    rest = json.dumps({key: value for key, value in line.items() if key != "round"}, sort_keys=True)
    return f'{{"round": {line["round"]}, {rest[1:]}\n'
