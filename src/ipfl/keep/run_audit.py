"""Verifies a run: its ledger with the replay of its own method, its key, and every file of its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ipfl.errors import InputError
from ipfl.keep.carried_balances import accounts_findings
from ipfl.keep.file_names import MANIFEST_FILE, METRICS_FILE, SUMMARY_FILE
from ipfl.keep.manifest import (
    ROUND_FOLDERS,
    Manifest,
    digest_files,
    read_manifest,
    result_findings,
    round_findings,
)
from ipfl.keep.run_folder import line_text
from ipfl.ledger.reader import PostedRound, Reader
from ipfl.ledger.schema import OPENING
from ipfl.ledger.store import RunStore
from ipfl.ledger.verify import Finding, MakeReplay, findings, verify
from ipfl.methods import method_class
from ipfl.system.files import read_bytes
from ipfl.system.folder_lock import is_locked


def verify_run(
    store: RunStore, *, public_key: str | None = None, expect: str | None = None
) -> Finding | None:
    """The first thing that is wrong with a run's history by the rules of its method; None: all is well."""
    make_replay: MakeReplay | None = None
    if store.header.get("rules"):
        name = str(store.header.get("method"))
        if ":" in name:  # a store from elsewhere must not make us import code
            text = f"the market of {name!r} can be replayed in Python only: verify(store, YourMethod.replay)"
            return Finding(None, None, text)
        try:
            make_replay = getattr(method_class(name), "replay", None)
        except InputError as error:
            return Finding(None, None, f"the run's method is not known here: {error}")
    return verify(store, make_replay, public_key=public_key, expect=expect)


def refuse_changed_files(store: RunStore, folder: Path, done: int) -> None:
    """Refuses to go on with a run whose files or rounds are not those that it wrote.

    Args:
        store: The run.
        folder: Its folder.
        done: Its last round, −1 if there is none.

    Raises:
        InputError: What was changed.
    """
    with store.snapshot() as reader:
        wrong: Finding | str | None = next(findings(store, reader, None), None)
        posted = reader.files()
    wrong = wrong or next(round_findings(digest_files(folder), posted, done), None)
    if wrong is not None:
        raise InputError(f"the run in {folder} was changed, and cannot go on: {wrong}")


@dataclass
class Audit:
    """A check of a run, and what it looked at.

    Args:
        store: The run.
        folder: Its folder; None: only the ledger is checked.
        public_key: Who must have signed; None: anybody, or nobody.
        expect: A hash that was noted earlier.
    """

    store: RunStore
    folder: Path | None = None
    public_key: str | None = None
    expect: str | None = None
    files: int = 0
    """How many files were compared with their hash."""
    notes: list[str] = field(default_factory=list)
    """What is not wrong, but was not proven either."""
    _last: PostedRound | None = None
    """The last round when the check began: more may be posted meanwhile."""

    def finding(self) -> Finding | None:
        """The first thing that is wrong; None if all is well."""
        with self.store.snapshot() as reader:
            self._last = reader.last()
        found = verify_run(self.store, public_key=self.public_key, expect=self.expect)
        return found or self._accounts_finding() or self.folder_finding()

    def _accounts_finding(self) -> Finding | None:
        try:
            return next(accounts_findings(self.store, self.folder), None)
        except InputError as error:
            self.notes.append(f"the opening balances are not compared: {error}")
            return None

    def folder_finding(self) -> Finding | None:
        """The first thing that is wrong with the files, compared with a ledger that is right.

        They are not compared if a process is at work on the run, or was while they were read.
        """
        if (folder := self.folder) is None:
            return None
        is_at_work = bool(is_locked(folder))
        with self.store.snapshot() as reader:
            last = reader.last()
            try:
                wrong = None if is_at_work else next(self._folder_findings(folder, reader), None)
            except InputError as error:
                wrong = str(error)
        with self.store.snapshot() as reader:
            if is_at_work or is_locked(folder) or reader.last() != last:
                self.folder = None
                self.notes = ["the run goes on: its files are compared when nobody writes them"]
                return None
        return None if wrong is None else Finding(None, None, wrong)

    def report(self) -> list[str]:
        """What was verified, for people; after `finding` found nothing."""
        store, last = self.store, self._last
        played, planned = 0 if last is None else last.round + 1, store.header.get("rounds")
        is_planned = isinstance(planned, int) and played <= planned  # rounds may have been added
        rounds = (
            f"{played} of {planned} rounds" if is_planned else f"{played} round{'' if played == 1 else 's'}"
        )
        files = "" if self.folder is None else f", {self.files} files"
        head = store.begun if last is None else last.hash
        is_signed = last is not None and last.public_key is not None
        signer = f"signed by {last.public_key}" if last is not None and is_signed else "NOT SIGNED"
        first = f"{store.name}: {rounds} verified{files}, {signer}, hash {head}"
        return [first, *(f"note: {note}" for note in self.notes)]

    def _folder_findings(self, folder: Path, reader: Reader) -> Iterator[str]:
        """The faults in the files of a run that has ended or was stopped."""
        last, posted = reader.last(), reader.files()
        played = OPENING if last is None else last.round
        digests, manifest, metrics = digest_files(folder), read_manifest(folder), _read_metrics(folder)
        if metrics is None and manifest is None and not posted:
            self.folder = None  # a store without a run's folder around it
            return
        if manifest is not None:
            yield from self._manifest_findings(manifest, last, reader)
        is_whole = manifest is not None and manifest.round == played
        yield from _metrics_findings(metrics, reader, is_whole=is_whole)
        yield from round_findings(digests, posted, played)
        if manifest is not None:
            for path, text in result_findings(digests, manifest):
                if text is not None:
                    yield text
                self.notes.append(f"{path} is not a file of the run")
            if is_whole:
                other = sorted({*digests} ^ {*manifest.files})
                here = [path for path in other if path.startswith(ROUND_FOLDERS)]
                self.notes += [
                    f"{path} has come or gone since the run ended; nothing needs it" for path in here
                ]
            else:
                self.notes.append(f"the run has gone on since it ended after {manifest.round + 1} rounds")
        elif SUMMARY_FILE in digests:
            yield f"{SUMMARY_FILE} is there, but no {MANIFEST_FILE}: if the run died as it ended, resume it"
        else:
            self.notes.append("the run has not ended: only what its rounds wrote is covered")
        self.files = len({*digests} & {*posted, *([] if manifest is None else manifest.files)})

    def _manifest_findings(
        self, manifest: Manifest, last: PostedRound | None, reader: Reader
    ) -> Iterator[str]:
        """The manifest is of this run, of one of its rounds, and signed as that is."""
        posted = reader.posted(manifest.round)
        ended = manifest.round + 1
        if manifest.begun != self.store.begun:
            yield f"{MANIFEST_FILE} is of a run with another name or header"
        elif posted is None and manifest.round != OPENING:
            there = 0 if last is None else last.round + 1
            yield f"the run ended after {ended} rounds, but only {there} are there"
        elif posted is not None and posted.hash != manifest.hash:
            yield f"the run ended with another round {manifest.round} than the one that is there"
        elif posted is not None and posted.public_key != manifest.public_key:
            yield f"{MANIFEST_FILE} is not signed by the key that signed round {manifest.round}"


def _read_metrics(folder: Path) -> bytes | None:
    try:
        return read_bytes(folder / METRICS_FILE)
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        raise InputError(f"{METRICS_FILE} cannot be read: {getattr(error, 'strerror', error)}") from error


def _metrics_findings(metrics: bytes | None, reader: Reader, *, is_whole: bool) -> Iterator[str]:
    """`metrics.jsonl` repeats the lines of the store; a run that goes on may not have written all of them."""
    if metrics is None:
        yield f"{METRICS_FILE} cannot be read: No such file or directory"
        return
    written = metrics.splitlines(keepends=True)
    posted = [one for one in reader.all_posted() if one.round != OPENING]
    for number, text in enumerate(written):
        if number >= len(posted):
            yield f"{METRICS_FILE} has line {number + 1}, of a round that is not in the ledger"
            return
        line = line_text(reader.line(posted[number])).encode()
        is_begun = not is_whole and number == len(written) - 1 and line.startswith(text)
        if text != line and not is_begun:
            yield f"{METRICS_FILE}, line {number + 1}, is not what round {posted[number].round} reported"
            return
    if is_whole and len(written) < len(posted):
        yield f"{METRICS_FILE} has {len(written)} lines for {len(posted)} rounds"
