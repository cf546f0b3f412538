"""Which key signs a run, and where it is: by default beside the run's folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipfl.errors import InputError
from ipfl.keep.file_names import PLAN_FILE
from ipfl.keep.run_folder import RunOutput
from ipfl.ledger.signing import KEY_FILE, SigningKey
from ipfl.ledger.store import RunStore


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
    key = None if output.signing_key is not None else statement_key(Path(output.path))
    return None if key is None else key.public


def refuse_other_key(store: RunStore, output: RunOutput) -> None:
    """Refuses to go on with a run that another key signed, unless the key was named.

    Raises:
        InputError: Rounds are signed, and not by this key.
    """
    with store.snapshot() as reader:
        last = reader.last()
    signer = None if last is None else last.public_key
    at_hand = None if store.key is None else store.key.public
    if signer not in (None, at_hand) and output.signing_key is None:
        raise InputError(
            f"the run in {output.path} is signed by the key {signer}, "
            f"which is not {key_beside(Path(output.path))}: name the file of its signing key"
        )


def statement_key(folder: Path | None, given: Path | None = None) -> SigningKey | None:
    """What statements of account are signed with: the key that is named, or the one beside the run's folder.

    None: there is none.
    """
    if given is not None:
        return SigningKey.read(given)
    beside = None if folder is None else key_beside(folder)
    return SigningKey.read(beside) if beside is not None and beside.is_file() else None
