"""What is kept of a run while it runs: the store with its ledger, checkpoints, and the files people read.

A round counts once the store has committed it. Its checkpoint is on disk before that, so whatever moment the
process dies at, the last committed round and all that led to it are there. Resuming starts from it; the round
after it is played again, and comes out the same, because all randomness is a function of the round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipfl.client.kept_predictors import write_predictors
from ipfl.core import NEWCOMER, ClientId, Method
from ipfl.engines import TellsAccounts
from ipfl.errors import InputError, NotSupportedError
from ipfl.keep.carried_balances import (
    CarriedAccounts,
    load_carried_accounts,
    mark_accounts,
    refuse_forgetting,
    taking_accounts,
)
from ipfl.keep.checkpoint import Checkpoints
from ipfl.keep.file_names import CHECKPOINTS, MANIFEST_FILE, OFFER_FILE, SUMMARY_FILE
from ipfl.keep.manifest import RoundFiles, write_manifest
from ipfl.keep.run_audit import refuse_changed_files, verify_run
from ipfl.keep.run_folder import RunFolder, RunOutput
from ipfl.keep.signing_keys import find_key, key_at_hand, key_of_new_run, refuse_other_key
from ipfl.ledger.database import StoreError
from ipfl.ledger.schema import OPENING
from ipfl.ledger.store import RunStore
from ipfl.market.market_rows import HasMarket, Transfer
from ipfl.methods import method_reference
from ipfl.play.loop import Callback, RoundLoop
from ipfl.results.result import Line
from ipfl.system.files import remove, remove_folder, write_record
from ipfl.system.plugins import remember_code

if TYPE_CHECKING:
    from ipfl.results.result import Result
    from ipfl.results.result_models import PlayedRun


class Journal(Callback):
    """The record of one run in one folder.

    Args:
        output: Its folder and its store.
        method: What is run.

    Raises:
        InputError: The folder holds a run already.
    """

    def __init__(self, output: RunOutput, method: Method[Any]):
        self.folder = RunFolder(output)
        self.is_resumed = output.resume
        self.name = self.folder.path.resolve().name
        self.checkpoints = Checkpoints(self.folder.checkpoints)
        self.output = output
        self._files = RoundFiles(self.folder.path)
        self._store: RunStore | None = None
        self._carried = self._carry_accounts(method)

    def _carry_accounts(self, method: Method[Any]) -> CarriedAccounts | None:
        """The accounts that the run begins with, or was begun with; None: all are opened anew."""
        if not self.is_resumed:
            refuse_forgetting(self.output)
        elif told := self.header().get("accounts"):
            self.output = replace(self.output, accounts=told["name"])
        if self.output.accounts is None:
            return None
        if not isinstance(method, HasMarket):
            raise InputError(
                f"accounts that outlive a run need a method with tokens, and {method.name} has none"
            )
        public_key = key_at_hand(self.output)
        return load_carried_accounts(self.output, partial(verify_run, public_key=public_key))

    @property
    def store(self) -> RunStore:
        """The store of the run, which was begun or resumed."""
        assert self._store is not None, "begin or resume first"
        return self._store

    @property
    def advice(self) -> str:
        """The end of an error message about a run that can be resumed."""
        return f"; what was committed is safe: resume the run in {self.folder.path}"

    def begun_with(self, clients: tuple[ClientId, ...]) -> dict[str, Any]:
        """The method's knowledge before the first round, as `make_setup` takes it."""
        balances = None if self._carried is None else self._carried.brought(clients)
        return {"balances": balances, "planned_rounds": self.header()["rounds"] if self.is_resumed else None}

    def begin(self, loop: RoundLoop) -> None:
        """Starts the record of a new run, or restores the rounds of an earlier process."""
        header = self._header_of(loop)
        if self.is_resumed:
            loop.restore(*self._resume(header, loop.opening, loop.state))
            loop.begun -= self.folder.earlier_seconds("seconds") or 0.0
            loop.last_step_seconds = self.folder.earlier_seconds("last_step_seconds")
        else:
            self._begin(header, loop.opening)
        if isinstance(loop.engine, TellsAccounts):
            loop.engine.tell_account = self.tell_account

    def _header_of(self, loop: RoundLoop) -> dict[str, Any]:
        """What the store says of the run as a whole."""
        config, task, method = loop.config, loop.task, loop.method
        clients = task.data.clients
        return {
            "method": method_reference(method),
            "seed": config.seed,
            "rounds": config.rounds,
            "clients": list(clients),
            "client_names": task.names_by_id,
            "rules": dict(method.rules(loop.state)) if isinstance(method, HasMarket) else {},
            "min_clients": config.train.min_clients,
            "data_seed": task.data_seed,
            "config": loop.record(),
            **({} if self._carried is None else {"accounts": self._carried.record(clients)}),
        }

    def keep(self, loop: RoundLoop, line: Mapping[str, Any]) -> None:
        """Commits a round.

        Raises:
            StoreError: The store cannot be written: the round is not committed, and the run can be resumed.
        """
        files, name = self._files.changed(), self.checkpoints.write(line["round"], loop.state)
        files |= {f"{CHECKPOINTS}/{file}": digest for file, digest in self.checkpoints.digests.items()}
        try:
            self.store.commit_round(line["round"], line, name, files)
        except StoreError as error:
            raise StoreError(f"{error}{self.advice}") from error
        self.checkpoints.remove_others()
        self.folder.add_round(line)

    def end(self, loop: RoundLoop, summary: dict[str, Any]) -> None:
        """Adds the newest hash of the store's chain to the summary; results of an earlier end go."""
        for old in (MANIFEST_FILE, SUMMARY_FILE):
            remove(self.folder.path / old)
        summary["ledger"] = self.store.head()

    def _begin(self, header: Mapping[str, Any], opening: Sequence[Transfer]) -> None:
        """Starts a new run with header and opening balances, in the place of an earlier one."""
        with (
            self.folder.taken(),
            key_of_new_run(self.output) as key,
            taking_accounts(self.output, _left_by(header)),
        ):
            self.folder.remove_store()
            self._store = RunStore.create(self.folder.path, self.name, header, key=key)
            self.folder.clear()
            if opening:
                self._store.commit_opening(opening)

    def header(self) -> dict[str, Any]:
        """What a run to be resumed was begun with."""
        return read_header(self.folder.path)

    def _resume(
        self, header: Mapping[str, Any], opening: Sequence[Transfer], fresh: Any
    ) -> tuple[list[Line], Any]:
        """The state after the last committed round; everything later is taken back.

        Args:
            header: What the run would be begun with now; it must be what it was begun with, but for rounds
                that are added.
            opening: Opening balances: posting them again is no harm, and they may be missing.
            fresh: The state before round 0, to compare with and to return if nothing was committed.

        Returns:
            The lines of all committed rounds, and the state after them.
        """
        self.folder.lock()
        self.folder.refuse_links()
        self._store = RunStore.open(self.folder.path, key=find_key(self.output))
        refuse_other_key(self._store, self.output)
        with taking_accounts(self.output, _left_by(self._store.header)):
            pass
        for key in ("method", "seed", "rounds", "clients", "rules", "min_clients"):
            now = json.loads(json.dumps(header[key]))
            begun = self._store.header.get(key, now)
            if begun != now and not (key == "rounds" and now > begun):
                longer = "; it can only be made longer" if key == "rounds" else ""
                raise InputError(
                    f"the run in {self.folder.path} was begun with {key} {begun}, not {now}{longer}"
                )
        if opening:
            self._store.commit_opening(opening)
        with self._store.snapshot() as reader:
            last = reader.last()
        self.folder.tidy()
        if last is None or last.round == OPENING:
            self.folder.clear()
        done = OPENING if last is None else last.round
        refuse_changed_files(self._store, self.folder.path, done)
        state = fresh
        if last is not None and done != OPENING:
            name = str(last.checkpoint)
            state = self.checkpoints.read(name, fresh)
            self.checkpoints.remove_others()
        lines = list(self._store.lines())
        if len(lines) > header["rounds"]:
            raise InputError(
                f"the run in {self.folder.path} has {len(lines)} rounds already, "
                f"more than {header['rounds']}: say how many there are to be"
            )
        self.folder.rewrite(lines)
        self._files.accept_until(done)
        return lines, state

    def write_results(self, result: Result, played: PlayedRun) -> None:
        """Writes the files of a finished run, and posts their hashes."""
        folder, task = self.folder, played.task
        # Data of the user's own may be elsewhere later; on nodes, nobody here has it.
        keeps = self.output.keep_models and task.is_users and task.input_dtype is not None
        remember_code([result.summary["model"], result.summary["config"]])
        folder.write_models(result.models, played.network)
        with suppress(NotSupportedError):  # without the file, `ipfl personalize` says so
            write_record(folder.path / OFFER_FILE, played.method.offer(result.state, NEWCOMER))
        if keeps and result.history:
            write_predictors(folder.predictors, played.predictors())
        elif folder.predictors.exists():  # of fewer rounds, from before the run was resumed
            remove_folder(folder.predictors)
        folder.write_summary(result.summary)
        write_manifest(folder.path, self.store)
        mark_accounts(self.output, self.store.head())

    def tell_account(self, client: ClientId, since: int | None) -> Mapping[str, Any] | None:
        """The signed statement of a client's account; None without signatures, or if there is nothing new.

        Args:
            client: Whose.
            since: The round of the statement that it had last; None: it had none.
        """
        header = self.store.header
        # An unseen client has no account.
        if self.store.key is None or not header.get("rules") or client not in header["clients"]:
            return None
        last = self.store.last_round()
        if since is not None and since == (OPENING if last is None else last):
            return None
        return self.store.statement(client, since=since).to_json()

    def release(self) -> None:
        """Closes the store, and lets others have the folder."""
        self.folder.release()


def _left_by(header: Mapping[str, Any]) -> str | None:
    """The run whose balances a run opens with; None: there is none."""
    told = header.get("accounts")
    return None if told is None else told["run"]


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a run that was begun: its config, seed and rules."""
    if not folder.is_dir():
        raise InputError(f"there is no run to resume in {folder}")
    return RunStore.open(folder).header
