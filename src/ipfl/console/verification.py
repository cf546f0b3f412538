"""Checks of whole histories, one at a time, in the background: a long run takes longer than a request may."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Lock, Thread

from ipfl.console.records import Verification
from ipfl.console.run_list import FoundRun, RunList
from ipfl.errors import InputError
from ipfl.ledger.findings import Finding
from ipfl.ledger.store import RunStore

NOT_VERIFIED = Verification(state="never", text="Not verified yet in this console.")


@dataclass
class Verifier:
    """Starts checks and keeps their results."""

    runs: RunList
    _results: dict[str, Verification] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def result(self, run: FoundRun) -> Verification:
        """What is known of a run."""
        return self._results.get(run.key, NOT_VERIFIED)

    def start(self, run: FoundRun) -> Verification:
        """Begins a check, unless one of this run is under way."""
        with self._lock:
            if self.result(run).state != "checking":
                self._results[run.key] = Verification(state="checking", text="Checking every round …")
                Thread(target=self._check, args=(run,), daemon=True).start()
            return self._results[run.key]

    def _check(self, run: FoundRun) -> None:
        begun = time.perf_counter()
        try:
            before = run.stamp()
            last, head, finding = _audit(run)
            if finding is not None and run.stamp() != before:  # the run went on meanwhile
                last, head, finding = _audit(run)
        except InputError as error:
            self._results[run.key] = Verification(state="wrong", text=" ".join(str(error).split()))
            return
        except Exception as error:  # it must not stay "checking" for ever
            text = f"The check failed: {type(error).__name__}. Try `ipfl ledger verify`."
            self._results[run.key] = Verification(state="wrong", text=text)
            return
        done = 0 if last is None else last + 1
        seconds = time.perf_counter() - begun
        self._results[run.key] = Verification(
            state="valid" if finding is None else "wrong",
            text=f"{done} rounds verified: sums, replay of every auction, hash chain, signatures and files."
            if finding is None
            else str(finding),
            rounds=done,
            hash=head,
            seconds=seconds,
        )


def _audit(run: FoundRun) -> tuple[int | None, str, Finding | None]:
    """The last round, the newest hash, and what is wrong; None if all is well."""
    # A store of its own: it keeps what it has added up, and requests are served meanwhile.
    with RunStore.open(run.address, run.run, retry_seconds=0, read_only=True) as store:
        last, head = store.last_round(), store.head()  # before the check: more rounds may be posted
        return last, head, _finding(run, store)


def _finding(run: FoundRun, store: RunStore) -> Finding | None:
    """What `ipfl ledger verify` would find first; None if all is well."""
    from ipfl.keep.run_audit import Audit, key_beside
    from ipfl.ledger.signing import read_public_key

    key = None
    if run.folder is not None and store.has_files and (beside := key_beside(run.folder)).is_file():
        key = read_public_key(str(beside))
    return Audit(store, run.folder, key, None, None).finding()
