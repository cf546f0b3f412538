"""Verifies a run: its ledger with the replay of its own method, its key, and every file of its folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipfl.errors import InputError
from ipfl.keep.carried_balances import accounts_findings
from ipfl.keep.evidence import checkpoint_findings, file_findings, read_digests
from ipfl.keep.file_names import METRICS_FILE, OFFER_FILE, PLAN_FILE, SERVER_MODELS, SUMMARY_FILE
from ipfl.keep.market_audit import verify_run as verify_run
from ipfl.keep.run_folder import RunOutput, line_text
from ipfl.ledger.anchors import anchor_findings
from ipfl.ledger.findings import Finding
from ipfl.ledger.reader import PostedClosing, PostedRound, Reader, parse_files
from ipfl.ledger.schema import OPENING
from ipfl.ledger.signing import KEY_FILE, SigningKey
from ipfl.ledger.store import RunStore
from ipfl.ledger.timestamps import stamp_findings, stamp_times
from ipfl.ledger.verify import chain_findings
from ipfl.system.files import is_locked, read_bytes


def find_key(output: RunOutput) -> SigningKey | None:
    """The key that signs a run: the one given, or the one beside its folder, made if it is not there.

    Without a place for a key of its own the run is not signed, and a warning says so.
    """
    if output.signing_key is not None:
        return SigningKey.read_or_make(output.signing_key)
    path = key_beside(Path(output.path))
    try:
        return SigningKey.read_or_make(path)
    except InputError as error:
        if path.exists():
            raise
        warnings.warn(
            f"the ledger is NOT SIGNED: {error}; name another place for the signing key", stacklevel=2
        )
        return None


@contextmanager
def key_of_new_run(output: RunOutput) -> Iterator[SigningKey | None]:
    """The key that signs a new run; one that was made for it is gone again if the run cannot begin."""
    path = key_beside(Path(output.path)) if output.signing_key is None else Path(output.signing_key)
    was_there = path.exists()
    key = find_key(output)
    try:
        yield key
    except Exception:
        if not was_there:
            path.unlink(missing_ok=True)
        raise


def key_beside(folder: Path) -> Path:
    """Where the key is: beside the run, or beside the comparison that it belongs to."""
    around = folder.resolve().parent
    return (around.parents[1] if (around.parent / PLAN_FILE).is_file() else around) / KEY_FILE


def key_at_hand(output: RunOutput) -> str | None:
    """The public key that signs the runs of this folder; None: there is none, or another one is named.

    Who names a key may have another one than the runs before.
    """
    path = key_beside(Path(output.path))
    return SigningKey.read(path).public if output.signing_key is None and path.exists() else None


def refuse_other_key(store: RunStore, output: RunOutput) -> None:
    """Refuses to go on with a run that another key signed, unless the key was named.

    Raises:
        InputError: Rounds are signed, and not by this key.
    """
    with store.snapshot() as reader:
        last = reader.last()
        found = None if last is None else reader.signature(last.round)
    at_hand = None if store.key is None else store.key.public
    if found is not None and found.public_key != at_hand and output.signing_key is None:
        raise InputError(
            f"the run in {output.path} is signed by the key {found.public_key}, "
            f"which is not {key_beside(Path(output.path))}: name the file of its signing key"
        )


def refuse_changed_files(store: RunStore, folder: Path, done: int) -> None:
    """Refuses to go on with a run whose files or rounds are not those that it wrote.

    Args:
        store: The run.
        folder: Its folder.
        done: The last round with a checkpoint, −1 if there is none.

    Raises:
        InputError: What was changed.
    """
    with store.snapshot() as reader:
        wrong = next((str(one) for one in chain_findings(store, reader)), None)
        if wrong is None and store.has_files:
            wrong = next(file_findings(read_digests(folder), reader.files(), done), None)
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
        anchor: A file elsewhere with hashes of the run.
        authority: Certificate of the authority whose time stamps the anchor has; None: they are not checked.
    """

    store: RunStore
    folder: Path | None = None
    public_key: str | None = None
    expect: str | None = None
    anchor: Path | None = None
    authority: Path | None = None
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
        if found is not None:
            return found
        with self.store.snapshot() as reader:
            if self.anchor is not None and (found := next(self._anchored(reader), None)) is not None:
                return found
        return self._accounts_finding() or self.folder_finding()

    def _accounts_finding(self) -> Finding | None:
        try:
            return next(accounts_findings(self.store, self.folder), None)
        except InputError as error:
            self.notes.append(f"the opening balances are not compared: {error}")
            return None

    def folder_finding(self) -> Finding | None:
        """The first thing that is wrong with the files, compared with a ledger that is right.

        A run may go on meanwhile, so the folder is read between two looks at the ledger: what rounds posted
        before it must be there, unless rounds posted since then explain that it is not.
        """
        if self.folder is None:
            return None
        with self.store.snapshot() as reader:
            before, posted_before = _progress(reader), reader.files()
        seen = FolderContents.read(self.folder)
        is_at_work = bool(is_locked(self.folder))
        with self.store.snapshot() as reader:
            if is_at_work or _progress(reader) != before:
                texts = self._running_findings(seen, posted_before, reader)
            elif self.store.has_files and seen.metrics is None and not reader.has_evidence():
                self.folder = None  # a store without a run's folder around it
                return None
            else:
                texts = self._resting_findings(seen, reader)
            wrong = next(texts, None)
        return None if wrong is None else Finding(None, None, wrong)

    def report(self) -> list[str]:
        """What was verified, for people; after `finding` found nothing."""
        store, last = self.store, self._last
        with store.snapshot() as reader:
            closings = reader.closings()
            signature = None if last is None else reader.signature(last.round)
        played, planned = 0 if last is None else last.round + 1, store.header.get("rounds")
        is_planned = isinstance(planned, int) and played <= planned  # rounds may have been added
        rounds = (
            f"{played} of {planned} rounds" if is_planned else f"{played} round{'' if played == 1 else 's'}"
        )
        files = "" if self.folder is None else f", {self.files} files"
        head = store.begun if last is None else last.hash
        signer = "NOT SIGNED" if signature is None else f"signed by {signature.public_key}"
        lines = [f"{store.name}: {rounds} verified{files}, {signer}, hash {head}"]
        if closings and last is not None and closings[-1].round == last.round:
            lines.append(f"with results: {closings[-1].hash}")
        if self.anchor is not None and self.authority is not None:
            times = stamp_times(self.anchor, store.name, self.authority)
            lines += [f"round {round} was there at {time.isoformat()}" for round, time in times.items()]
        return lines + [f"note: {note}" for note in self.notes]

    def _anchored(self, reader: Reader) -> Iterator[Finding]:
        assert self.anchor is not None
        yield from anchor_findings(self.anchor, self.store, reader)
        if self.authority is not None:
            yield from stamp_findings(self.anchor, self.store.name, self.authority)

    def _running_findings(
        self, seen: FolderContents, posted: Mapping[str, tuple[int, str]], reader: Reader
    ) -> Iterator[str]:
        """A run that is at work has its last checkpoint, and lines that say what its rounds did."""
        yield from _metrics_findings(seen, reader, is_whole=False)
        yield from checkpoint_findings(seen.digests, posted, reader.files())
        self.files = len({*seen.digests} & {*posted})
        self.notes.append(
            "the run goes on: of its files only the lines of its rounds and the checkpoint are compared"
        )

    def _resting_findings(self, seen: FolderContents, reader: Reader) -> Iterator[str]:
        """Nobody is at work on the run, which has ended or not."""
        closings, last = reader.closings(), reader.last()
        closing = closings[-1] if closings else None
        played = OPENING if last is None else last.round
        is_closed = closing is not None and closing.round == played
        yield from _metrics_findings(seen, reader, is_whole=is_closed or not self.store.has_files)
        yield from self._summary_findings(seen, closing, played)
        if not self.store.has_files:
            self.notes.append(
                "an earlier release wrote the run: checkpoint, models and memories are not covered"
            )
            return
        results = {} if closing is None else parse_files("the closing", closing.files)
        if is_closed:
            yield from self._closed_findings(seen, results, reader.files())
        else:
            yield from self._stopped_findings(seen, results, reader)
        if closing is None:
            self.notes.append("the run has not ended: only what its rounds wrote is covered")
        elif not is_closed:
            self.notes.append(f"the run has gone on since it ended after {closing.round + 1} rounds")

    def _closed_findings(
        self, seen: FolderContents, results: Mapping[str, str], posted: Mapping[str, tuple[int, str]]
    ) -> Iterator[str]:
        """A run that has ended holds exactly the files that its closing names."""
        for path, digest in results.items():
            writer = f"round {posted[path][0]} wrote" if path in posted else "the run wrote when it ended"
            if path not in seen.digests:
                yield f"{path} is missing, which {writer}"
            elif seen.digests[path] != digest:
                yield f"{path} is not the file that {writer}"
        self.files = len(results)
        for path in sorted({*seen.digests} - {*results}):
            if "/" in path or path in (SUMMARY_FILE, OFFER_FILE):
                yield f"{path} is not a file that the run wrote"
            else:
                self.notes.append(f"{path} is not a file of the run")

    def _stopped_findings(
        self, seen: FolderContents, results: Mapping[str, str], reader: Reader
    ) -> Iterator[str]:
        """A run that can be resumed has what it starts from, and the results of its last end."""
        posted = reader.files()
        done = max((one.round for one in reader.all_posted() if one.checkpoint is not None), default=OPENING)
        yield from file_findings(seen.digests, posted, done)
        self.files = len({*seen.digests} & {*posted})
        for path, digest in results.items():
            if path in (SUMMARY_FILE, OFFER_FILE) or path.startswith(f"{SERVER_MODELS}/"):
                self.files += 1
                if seen.digests.get(path) != digest:
                    yield f"{path} is not the file that the run wrote when it last ended"
        if not results and SUMMARY_FILE in seen.digests:
            yield f"{SUMMARY_FILE} is there, but nothing that the run posted covers it"

    def _summary_findings(
        self, seen: FolderContents, closing: PostedClosing | None, played: int
    ) -> Iterator[str]:
        """The summary is of the run's last end, or of the last round if the run is of an older release."""
        if seen.summary is None:
            return
        try:
            summary: Any = json.loads(seen.summary)
            rounds, head = summary["rounds"], summary["ledger"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            yield f"{SUMMARY_FILE} cannot be read: {' '.join(repr(error).split())[:100]}"
            return
        ended = played if closing is None else closing.round
        if rounds != ended + 1:
            yield f"{SUMMARY_FILE} says {rounds} rounds, the ledger {max(0, ended + 1)}"
        elif head != (self.store.head() if closing is None else closing.head):
            yield f"{SUMMARY_FILE} names another ledger: {head}"


@dataclass(frozen=True)
class FolderContents:
    """The files of a run's folder as they were read, one after the other."""

    digests: Mapping[str, str]
    """SHA-256 of every file that evidence covers."""
    metrics: bytes | str | None
    """The lines of the rounds, or why they cannot be read; None: there are none."""
    summary: bytes | None
    """The summary; None: there is none."""

    @classmethod
    def read(cls, folder: Path) -> FolderContents:
        """Reads them."""
        return cls(read_digests(folder), _read_metrics(folder), _read_summary(folder))


def _read_metrics(folder: Path) -> bytes | str | None:
    try:
        return read_bytes(folder / METRICS_FILE)
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        return str(getattr(error, "strerror", error))


def _read_summary(folder: Path) -> bytes | None:
    path = folder / SUMMARY_FILE
    try:
        return path.read_bytes() if path.is_file() else None
    except FileNotFoundError:
        return None


def _progress(reader: Reader) -> tuple[int | None, int]:
    """The last round, and how often the run has ended."""
    last = reader.last()
    return None if last is None else last.round, len(reader.closings())


def _metrics_findings(seen: FolderContents, reader: Reader, *, is_whole: bool) -> Iterator[str]:
    """`metrics.jsonl` repeats the lines of the store; a run that goes on may not have written all of them."""
    if not isinstance(seen.metrics, bytes):
        yield f"{METRICS_FILE} cannot be read: {seen.metrics or 'No such file or directory'}"
        return
    written = seen.metrics.splitlines(keepends=True)
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
